/* Makes children by vfork for ever, one after the other, that take their time before they end: the parent waits for that
   in the kernel, where no signal stops it. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	for (;;) {
		pid_t child = vfork();

		if (child < 0)
			return EXIT_FAILURE;
		if (child == 0) {
			usleep(100000);
			_exit(EXIT_SUCCESS);
		}
		if (waitpid(child, NULL, 0) != child)
			return EXIT_FAILURE;
	}
}
