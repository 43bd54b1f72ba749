package wire

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

var (
	endedCall       = metric.WithAttributes(attribute.String("what", "call"))
	endedConnection = metric.WithAttributes(attribute.String("what", "connection"))
)

// NewMeteredBudget is [NewBudget] with metrics, whose names begin with prefix.
func NewMeteredBudget(cfg BudgetConfig, meter metric.Meter, prefix string) (*Budget, error) {
	ended, err := meter.Int64Counter(prefix+".delivery.ended", metric.WithUnit("{peer}"),
		metric.WithDescription("Calls and connections ended because nothing of them was taken, or came, while room for messages was short."))
	cfg.Stalled = func(v Victim) {
		what := endedCall
		if v == VictimConnection {
			what = endedConnection
		}
		ended.Add(context.Background(), 1, what)
	}
	b := NewBudget(cfg)
	_, err2 := meter.Int64ObservableGauge(prefix+".delivery.bytes", metric.WithUnit("By"),
		metric.WithDescription("Messages with records that are fetched for peers, or sent and not taken yet."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(b.Used())
			return nil
		}))
	return b, errors.Join(err, err2)
}
