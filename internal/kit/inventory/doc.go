// Package inventory knows what the processes of a tree have: descriptors ([Process.Open]), mappings
// ([Process.Mapped]), links, sockets, namespaces and mounts. It reads each of these once. Who asks about the
// processes of a tree asks here: core/inspect, core/stages, hooks/checkpoint, jobs/inside, kit/files and migrate; the
// files that a checkpoint saves are chosen by kit/files, those that a move needs by migrate/prepare. Who asks for one
// descriptor or one network, of whomever, asks package proc. It changes nothing, judges nothing, and knows neither criu
// nor a session.
//
// A tree is looked at twice:
//
//   - [Advice] is read before anything is touched. The processes run meanwhile, so it may be out of date as soon as
//     it is read: it says what would probably become of a dump, and a refusal for it costs nothing.
//   - [Truth] is read when all processes of the tree have been stopped, and stays true until one of them runs. A dump
//     reads it again if it finds one that it had not stopped, or has to let all run for a moment.
//
// Neither is used again once a process is known to have run, or was changed, since it was read. [Now] is for what is
// asked in between, such as about a process that was born while the tree was being stopped, or what a checkpoint has
// left open: it is a look at one process for one question, and is neither advice nor truth. What may be
// over in a moment is asked again of the whole tree: [RemovedNamesNow], UNIXSocketsNow, and files in use in
// migrate/prepare. A long job's files are saved by a truth of their own, read when criu has written its images.
//
// Each part is read when it is asked for, and then kept; of advice, mappings, descriptors and status are read at once.
// What is kept of a file is how the tree uses it. Others may change the file itself, even while the tree is stopped.
package inventory
