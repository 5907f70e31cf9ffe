/* odd KIND DIR: a process that is odd in one way. When it has become so, it makes DIR/ready. Whenever DIR/ask is made, it looks
   whether it is still what it was, and writes "as it was", or what is wrong, into DIR/answer. A kind that this kernel does not
   have ends with DIR/not-here, which says why. */
#include "odd.h"

#include <stdarg.h>
#include <sys/mman.h>

char **arguments;
static bool asked;
static volatile unsigned *beats; /* of the child */

static void answer(const char *file, const char *text)
{
	FILE *out = fopen("new", "w");

	if (!out || fputs(text, out) < 0 || fclose(out) != 0 || rename("new", file) != 0)
		perror(file);
	unlink("ask");
}

void wrong(const char *format, ...)
{
	char text[500];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fprintf(stderr, "odd %s: %s\n", arguments[1], text);
	if (asked)
		answer("answer", text);
	exit(1);
}

void not_here(const char *what)
{
	char text[500];

	snprintf(text, sizeof text, "%s: %m", what);
	answer("not-here", text);
	exit(1);
}

pid_t child(void (*become)(void))
{
	pid_t pid = must(fork());

	if (pid == 0) {
		become();
		for (;; usleep(10000))
			++*beats;
	}
	child_runs(pid);
	return pid;
}

void child_runs(pid_t pid)
{
	for (unsigned before = *beats; *beats == before; usleep(1000))
		if (kill(pid, 0) != 0 || waitpid(pid, NULL, WNOHANG) == pid)
			wrong("the child has ended");
}

static const struct kind *kind_named(const char *name)
{
	static const struct kind *const all[] = {of_processes, of_files, of_names, of_unrestorable, of_everything};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (const struct kind *kind = all[i]; kind->name; kind++)
			if (strcmp(kind->name, name) == 0)
				return kind;
	wrong("there is no such kind");
}

void serve(void)
{
	const struct kind *kind = kind_named(arguments[1]);

	must(close(must(creat("ready", 0600))));
	for (;; usleep(10000)) {
		if (access("ask", F_OK) != 0)
			continue;
		asked = true;
		if (kind->look)
			kind->look();
		answer("answer", "as it was");
		asked = false;
	}
}

int main(int argc, char **argv)
{
	const struct kind *kind;

	arguments = argv;
	if (argc != 3) {
		fputs("usage: odd KIND DIR\n", stderr);
		return 2;
	}
	kind = kind_named(argv[1]);
	must(chdir(argv[2]));
	beats = must(mmap(NULL, sizeof *beats, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	kind->become();
	serve();
}
