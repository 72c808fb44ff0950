package api

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts requests, for Prometheus. A nil *Metrics counts nothing. Labels
// have a few known values: a route is its pattern, never a path.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// noRoute is the label of requests to no route of ours.
const noRoute = "none"

// NewMetrics registers the metrics of the API. It panics if they are registered
// there already.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outboxd_http_requests_total", Help: "Requests to the API that were answered.",
		}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outboxd_http_request_seconds", Help: "Time from the head of a request to the end of its answer.",
			Buckets: []float64{.0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
	}
	registerer.MustRegister(m.requests, m.seconds)
	return m
}

// methods are those that are told apart; a client can send any word.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// answered counts a request. pattern is that of its route; empty: it has none.
func (m *Metrics) answered(method, pattern string, status int, took time.Duration) {
	if m == nil {
		return
	}
	if !slices.Contains(methods, method) {
		method = "other"
	}
	if pattern == "" || status == http.StatusMethodNotAllowed {
		pattern = noRoute
	}
	m.requests.WithLabelValues(method, pattern, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(pattern).Observe(took.Seconds())
}
