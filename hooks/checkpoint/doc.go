// Package checkpoint does a whole dump or restore, as cucriu dump and restore do: it starts a criu of
// its own, drives it over RPC, and serves its stages. It also brings the session to its end, so its
// caller learns what became of the job. And it checks beforehand, suspends, resumes, locks and unlocks
// processes, and says in which state they are.
//
// An image directory is complete or absent: criu writes into a partial one beside it. That one gets the
// name at post-dump, with the processes still held, or after criu has ended if the job is left alive. If
// the host goes down before that, the partial one stays, and the next dump into that directory removes it;
// the journal of the dump is closed because the host has rebooted since, and nothing of the job is left. A
// plain criu with the hook writes into the directory itself: there, the manifest tells what is complete.
package checkpoint
