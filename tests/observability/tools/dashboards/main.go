// Reads dashboards by Grafana's own schema and says what it refuses: dashboards FILE...
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// check returns what the schema refuses in a dashboard, empty where that is nothing.
func check(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var board dashboard.Dashboard
	// It returns an empty list of errors, which is not nil.
	if err := board.UnmarshalJSONStrict(data); err != nil && err.Error() != "" {
		return err.Error()
	}
	if err := board.Validate(); err != nil && err.Error() != "" {
		return err.Error()
	}
	return ""
}

func main() {
	plugins.RegisterDefaultPlugins()
	refused := 0
	for _, path := range os.Args[1:] {
		if problem := check(path); problem != "" {
			fmt.Printf("%s: %s\n", path, problem)
			refused++
		}
	}
	if refused > 0 {
		os.Exit(1)
	}
}
