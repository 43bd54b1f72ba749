// Package config gives every program the same command line: flags, each with
// an environment twin and a key of the YAML file, --help, --version and
// print-config.
//
// Invariants:
//   - A flag beats its environment variable, that beats the file, that beats
//     the default.
//   - What is misspelled fails before anything is opened: unknown flags,
//     unknown and nested keys. Unknown NOVA_* variables are ignored, because a
//     machine's environment serves several programs.
//   - Exit codes: 0, 1 failure, 2 usage.
package config
