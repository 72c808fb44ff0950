// Command worker delivers the emails of outboxd. Run as many as you like.
package main

import (
	"os"

	"github.com/outboxd/outboxd/cmd/internal/app"
)

func main() {
	os.Exit(app.Main("worker", "delivers the emails of outboxd", app.RunWorker))
}
