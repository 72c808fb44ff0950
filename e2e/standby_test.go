package e2e_test

import (
	"net/http"
	"testing"

	"github.com/outboxd/outboxd/providers/providertest"
)

// While no standby confirms, nothing is acknowledged that the primary alone has: it
// would be lost with it. Neither is a repetition, which finds the email there. When
// commits go on, it is acknowledged, and is one email (I1, I6).
func TestNothingIsAcknowledgedWithoutTheStandby(t *testing.T) {
	t.Parallel()
	db := startReplicated(t)
	outboxctl(t, db.url(), "migrate", "up")
	in := installOn(t, db.url())
	base := in.start("api", resendEnv(providertest.NewHTTP(t, providertest.Resend))...).url("api")
	submit := func() answer { return mustCall(t, http.MethodPost, base+"/emails", in.token, "alone", email(1)) }
	if err := db.replica.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, which := range []string{"submission", "repetition"} {
		if a := submit(); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("the %s is answered with %d: %s", which, a.status, a.body)
		}
	}
	// The operator gives the standby up.
	above := db.above(db.primary)
	above.exec("ALTER SYSTEM SET synchronous_standby_names = ''")
	above.exec("SELECT pg_reload_conf()")
	eventually(t, "it is acknowledged", func() bool { return submit().status == http.StatusAccepted })
	if n := in.count("SELECT count(*) FROM outbox.emails"); n != 1 {
		t.Errorf("%d emails", n)
	}
}
