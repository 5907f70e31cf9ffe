// Package config reads the configuration file and the environment variables that
// override it. It knows what a value may be and where it came from; it does not
// know what the values do.
//
// The hook runs as root inside CRIU and loads the library that the configuration
// names, so a file that others than root could have written is refused.
package config
