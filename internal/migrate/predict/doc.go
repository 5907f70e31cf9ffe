// Package predict knows how long a migration will pause a job, from how much there is
// to move and how fast that goes. It measures nothing, and touches nothing.
//
// Without pre-copy a job is paused once:
//
//	checkpoint    the driver moves GPU memory into the processes' memory
//	copy          this memory is copied out of the processes
//	criu dump     criu writes everything else
//	send          the rest of it goes to the destination: the GPU's content leaves from copy on
//	criu restore
//	fill in       the GPU's content goes into the new processes
//	restore       the driver moves it onto the GPUs
//	confirm       ready, commit: two round trips
//
// With pre-copy it is paused twice. First for a round that leaves it running: checkpoint, copy,
// criu dump, fill in and restore on the source, without send, as that continues while the job runs.
// Then for the final dump, with the same phases as above, and
//
//	compare       which memory is what it was in the round
//
// after criu dump. Only send is shorter: what has changed since the round is sent. The driver always
// moves all GPU memory. The library of cucriu run --dir does not ([Rates.Keeps]): after the round the memory comes back from copies on the
// GPUs, and the final dump moves only what has changed.
//
// # Where pre-copy loses
//
// So pre-copy trades transfer for a second checkpoint and restore: it pays if
//
//	unchanged share × memory ÷ bandwidth > the standstill of the round + compare + what leaves early without
//
// A round of a process with 16 GiB takes some 7 s, as measured; all of its memory goes over a link
// of 100 Gbit/s in 1.4 s. There pre-copy loses whatever is unchanged. On 10 Gbit/s it takes 14 s:
// pre-copy pays from some 65 % unchanged ([Prediction.PaysFrom]).
//
// A training whose weights change with every step loses on all but very slow links. Of PyTorch
// with Adam 3 % were unchanged after 2 s. With three of four layers frozen it was 35 to 39 %, for
// LoRA of rank 8 89 %, for inference 90 to 97 %. And the share falls while the round is sent: it
// is known from two dumps of the same job, about as far apart as the transfer takes. So nothing is
// assumed of it: by itself, pre-copy is used where little is lost if all changes ([Prediction.Precopy]).
package predict
