// Package config reads the configuration file and the environment variables that override it.
// It knows which values are valid and where each came from. It must not know what the values
// do.
//
// The hook runs as root inside CRIU and loads the library that the configuration names. So a
// file that anybody but root, or the user that runs the program, could have written is refused.
package config
