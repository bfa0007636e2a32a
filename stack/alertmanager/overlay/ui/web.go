// Package ui stands in for Alertmanager's package of this name when ../ is built: the module has its sources of the web
// pages, but not the pages, which a JavaScript toolchain makes. The API is all there.
package ui

import "github.com/prometheus/common/route"

// Register registers no page.
func Register(*route.Router) {}
