package providertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// SES is SendEmail of Amazon SES's API v2, with the message in MIME:
// https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendEmail.html
var SES = Dialect{
	Name: "ses",
	Path: "/v2/email/outbound-emails",
	Parse: func(r Seen) Parsed {
		var m sesMail
		err := json.Unmarshal(r.Body, &m)
		header := headerOf(m.Content.Raw.Data)
		return Parsed{
			Reference: m.tag("outboxd_attempt"),
			From:      header.from, To: m.recipients(), Subject: header.subject,
			Refusal: checkSES(r, m, err),
			Accepted: func(id string) Reaction {
				return Reply(http.StatusOK, fmt.Sprintf(`{"MessageId":%q}`, id)).With("Content-Type", "application/json")
			},
			Content: m.Content.Raw.Data,
		}
	},
	Read: func(r Seen) (providers.Message, error) {
		var m sesMail
		if err := json.Unmarshal(r.Body, &m); err != nil {
			return providers.Message{}, err
		}
		return ReadMIME(m.Content.Raw.Data, m.recipients())
	},
	Refuse: func(status int) Reaction {
		code, ok := sesErrorCodes[status]
		if !ok {
			code = "InternalFailure"
		}
		return sesError(status, code, http.StatusText(status))
	},
}

// sesErrorCodes are codes for answers that a script asks for by their status
// alone:
// https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendEmail.html#API_SendEmail_Errors
// https://docs.aws.amazon.com/ses/latest/APIReference-V2/CommonErrors.html
var sesErrorCodes = map[int]string{
	http.StatusBadRequest:            "BadRequestException",
	http.StatusUnauthorized:          "NotAuthorized",
	http.StatusForbidden:             "AccessDeniedException",
	http.StatusNotFound:              "NotFoundException",
	http.StatusRequestEntityTooLarge: "RequestEntityTooLargeException",
	http.StatusTooManyRequests:       "TooManyRequestsException",
	http.StatusServiceUnavailable:    "ServiceUnavailable",
}

// sesMail is the part of the request that the service's rules look at. It is
// written from the API's page and not with the SDK's types, which the adapter
// uses.
type sesMail struct {
	ConfigurationSetName string
	Content              struct {
		Raw struct {
			Data []byte // base64 in JSON
		}
	}
	Destination struct {
		ToAddresses, CcAddresses, BccAddresses []string
	}
	EmailTags []struct{ Name, Value string }
}

func (m sesMail) recipients() []string {
	to := append([]string(nil), m.Destination.ToAddresses...)
	return append(append(to, m.Destination.CcAddresses...), m.Destination.BccAddresses...)
}

func (m sesMail) tag(name string) string {
	for _, t := range m.EmailTags {
		if t.Name == name {
			return t.Value
		}
	}
	return ""
}

var (
	// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-signing-elements.html
	sesSignature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=\S+/ses/aws4_request, ` +
		`SignedHeaders=\S*host\S*, Signature=[0-9a-f]{64}$`)
	// https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_MessageTag.html
	sesTag = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)
)

// checkSES refuses what the service is known to refuse. That a signature is
// right is not checked, for lack of the secret.
func checkSES(r Seen, m sesMail, err error) Reaction {
	switch {
	case r.Header.Get("Authorization") == "":
		return sesError(http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token")
	case !sesSignature.MatchString(r.Header.Get("Authorization")), r.Header.Get("X-Amz-Date") == "":
		return sesError(http.StatusForbidden, "IncompleteSignatureException", "The request signature does not conform to AWS standards.")
	case err != nil:
		return sesError(http.StatusBadRequest, "SerializationException", "")
	case len(m.Content.Raw.Data) == 0:
		return sesError(http.StatusBadRequest, "BadRequestException", "Missing required content")
	case len(m.recipients()) == 0, len(m.recipients()) > 50:
		return sesError(http.StatusBadRequest, "BadRequestException", "Recipient count must be between 1 and 50.")
	}
	for _, address := range m.recipients() {
		if strings.IndexFunc(address, func(r rune) bool { return r > '~' }) >= 0 {
			return sesError(http.StatusBadRequest, "BadRequestException", "Local address contains control or whitespace")
		}
	}
	seen := map[string]bool{}
	for _, t := range m.EmailTags {
		if !sesTag.MatchString(t.Name) || !sesTag.MatchString(t.Value) || seen[t.Name] {
			return sesError(http.StatusBadRequest, "BadRequestException", "Invalid tag "+t.Name)
		}
		seen[t.Name] = true
	}
	if err := checkMIME(m.Content.Raw.Data); err != nil {
		return sesError(http.StatusBadRequest, "BadRequestException", err.Error())
	}
	return Reaction{}
}

func sesError(status int, code, message string) Reaction {
	body, err := json.Marshal(map[string]string{"message": message})
	if err != nil {
		panic(err) // of strings
	}
	return Reply(status, string(body)).With("Content-Type", "application/json").With("X-Amzn-ErrorType", code)
}
