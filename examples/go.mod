module github.com/staleproof/staleproof/examples

go 1.26.0

replace github.com/staleproof/staleproof => ../

require (
	github.com/staleproof/staleproof v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require (
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
