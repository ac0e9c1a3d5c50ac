/* SPDX-License-Identifier: Apache-2.0 */
/* wipe.h: does the kernel honour MADV_WIPEONFORK, by which an engine knows that it is a
 * child's copy?
 *
 * qemu-user accepts every advice, and passes this one on to nobody. */
#ifndef TESTS_WIPE_H
#define TESTS_WIPE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static inline int kernel_wipes(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	volatile char *bytes =
		mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status = -1;
	pid_t child;

	if ((void *)bytes == MAP_FAILED)
		return 0;
	*bytes = 1;
	if (!madvise((void *)bytes, page, MADV_WIPEONFORK)) {
		child = fork();
		if (!child)
			_exit(*bytes);
		waitpid(child, &status, 0);
	}
	munmap((void *)bytes, page);
	return status == 0;
}

/* Skip the running test where it does not. */
static inline void skip_without_wipe(void)
{
	if (kernel_wipes())
		return;
	print_message("the kernel does not wipe memory on fork (MADV_WIPEONFORK)\n");
	skip();
}

#endif
