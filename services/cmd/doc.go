// Package cmd holds the programs, one folder each. They all look alike: flags,
// check, build, run; what they share is in libs/config and services/node.
package cmd

//go:generate go test -run TestConfigurationPage -count=1 . -update
