// Package pagemap reads and writes CRIU's pagemaps, and makes of the memory in a dump what differs
// from that in an earlier one.
//
// A pagemap says which pages of a process, or of shared memory, are in a dump. Their content
// follows one another in a file of its own, without a header. An entry with [InParent] has its
// content elsewhere: in the images in the directory "parent" of the dump, at the same addresses.
// CRIU writes such entries in incremental dumps, and reads them from any directory of that name.
//
// So a dump can be stored as a difference to an earlier one, which is linked into parent. The
// earlier one must be whole itself: there are no chains.
//
// The package knows the two files. Which addresses must not be left to a parent, its caller knows.
package pagemap
