// Command api serves the HTTP API of outboxd.
package main

import (
	"os"

	"github.com/outboxd/outboxd/cmd/internal/app"
)

func main() {
	os.Exit(app.Main("api", "serves the HTTP API of outboxd", app.RunAPI))
}
