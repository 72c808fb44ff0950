// Command go-order places an order and submits its receipt in one transaction:
// afterwards both are there, or neither is. It prints the id of the email.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/outbox"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: go-order ORG ORDER TOTAL")
	}
	org, err := uuid.Parse(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	email, err := place(context.Background(), org, os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(email)
}

func place(ctx context.Context, org uuid.UUID, order, total string) (email uuid.UUID, err error) {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return uuid.Nil, err
	}
	defer func() { _ = db.Close(ctx) }()
	mail, err := outbox.NewClient(nil, outbox.Config{})
	if err != nil {
		return uuid.Nil, err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		receipt, err := mail.EnqueueTx(ctx, tx, outbox.Submission{
			Org:            org,
			IdempotencyKey: "receipt-" + order, // placed again, it is the same email
			Messages: []outbox.Message{{
				From: "Shop <shop@example.com>", To: []string{"jane@example.org"},
				Subject: "Your order " + order, Text: "Thank you. You paid " + total + " EUR.",
			}},
		})
		if err != nil {
			return err
		}
		email = receipt.IDs[0]
		// If the table refuses the order, its receipt is gone as well.
		_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING", order, total)
		return err
	})
	return email, err
}
