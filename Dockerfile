# The three programs in one image: static, without a shell, without root.
#   docker build --build-arg VERSION="$(git describe --tags --always)" -t outboxd .

ARG GO_VERSION=1.26

FROM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download && go mod verify
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath \
    -ldflags "-s -w -X github.com/outboxd/outboxd/cmd/internal/app.Version=${VERSION}" \
    -o /out/ ./cmd/api ./cmd/worker ./cmd/outboxctl
RUN printf 'nonroot:x:65532:65532:nonroot:/nonexistent:/none\n' >/out/passwd && \
    printf 'nonroot:x:65532:\n' >/out/group

FROM scratch
LABEL org.opencontainers.image.title="outboxd" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/passwd /out/group /etc/
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /LICENSE
COPY --from=build /out/api /out/worker /out/outboxctl /usr/local/bin/
ENV PATH=/usr/local/bin
USER 65532:65532
# api; ops of api; ops of worker
EXPOSE 8080 9090 9091
CMD ["api"]
