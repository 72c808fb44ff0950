package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxd/outboxd/api"
)

// A route is its pattern, and whatever a client makes up is one value.
func TestRequestsAreCountedByTheirPattern(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	handler := api.New(api.Config{Metrics: api.NewMetrics(registry)})
	for _, request := range [][2]string{
		{"GET", "/healthz"},
		{"GET", "/v1/healthz"},
		{"GET", "/emails/1"},
		{"GET", "/emails/2"},
		{"DELETE", "/suppressions/jane@example.com"},
		{"GET", "/secret-1"},
		{"GET", "/secret-2"},
		{"DELETE", "/emails"},
		{"BREW", "/emails/1"},
		{"BREWED", "/nowhere"},
	} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), request[0], request[1], http.NoBody))
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != "outboxd_http_requests_total" {
				got["seen"] += float64(m.GetHistogram().GetSampleCount())
				continue
			}
			labels := m.GetLabel()
			got[labels[0].GetValue()+" "+labels[1].GetValue()+" "+labels[2].GetValue()] = m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"GET /healthz 200": 2, "GET /emails/{id} 401": 2, "DELETE /suppressions/{address} 401": 1,
		"GET none 404": 2, "DELETE none 405": 1, "other none 405": 2, "seen": 10,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
