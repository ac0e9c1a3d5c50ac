/* SPDX-License-Identifier: Apache-2.0 */
/* files.c: files that tests register */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int file_new(uint64_t length)
{
	const char *directory = getenv("TEST_FILES");
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/wherry-test-XXXXXX", directory ? directory : "/tmp");
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	unlink(path);
	if (ftruncate(fd, (off_t)length)) {
		int error = -errno;

		close(fd);
		return error;
	}
	return fd;
}

void *file_map(int fd, uint64_t length)
{
	void *map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return map == MAP_FAILED ? NULL : map;
}

int file_region(struct wh_engine *engine, int fd, uint64_t offset, uint64_t length,
		const struct wh_region_options *options, struct wh_region **out)
{
	struct wh_file_options file = { .size = sizeof(file),
					.offset = offset,
					.length = length,
					.flags = WH_FILE_WRITE,
					.region = options };

	return wh_file_register_fd(engine, fd, &file, out);
}

bool file_ring_is_allowed(void)
{
	struct {
		char bytes[120];
	} params = { { 0 } };
	long fd = syscall(SYS_io_uring_setup, 8, &params);

	if (fd >= 0)
		close((int)fd);
	return fd >= 0;
}
