package main

import (
	"context"
	"log"
	"log/slog"
)

func demo(ctx context.Context, cfg config, logger *log.Logger, debug *slog.Logger) error { return nil }
