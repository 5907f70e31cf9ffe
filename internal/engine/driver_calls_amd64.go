package engine

import (
	"golang.org/x/sys/unix"

	"cucriu/internal/inject"
)

var callsOfDriverHere = []inject.Call{
	{Number: unix.SYS_STAT},
	{Number: unix.SYS_POLL},
	{Number: unix.SYS_ACCESS},
	{Number: unix.SYS_DUP2},
	{Number: unix.SYS_SYMLINK},
	{Number: unix.SYS_UNLINK},
}
