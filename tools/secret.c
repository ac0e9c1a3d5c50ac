/* SPDX-License-Identifier: Apache-2.0 */
/* Read a secret from a file that only this user can access. */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

int secret_read(const char *what, const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat file;
	ssize_t got;

	if (fd < 0)
		return fail(errno, "%s %s: %s", what, path, strerror(errno));
	if (fstat(fd, &file) || !S_ISREG(file.st_mode) || file.st_mode & 077 ||
	    file.st_uid != geteuid()) {
		close(fd);
		return fail(EPERM, "%s %s: must be a file that you own, with mode 0600", what,
			    path);
	}
	got = read(fd, out, size);
	close(fd);
	if (got < 0)
		return fail(errno, "%s %s: %s", what, path, strerror(errno));
	if ((size_t)got == size)
		return fail(EINVAL, "%s %s: must have one line of at most %zu bytes", what, path,
			    size - 1);
	out[got] = '\0';
	out[strcspn(out, "\r\n")] = '\0';
	return 0;
}
