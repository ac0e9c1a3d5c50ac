/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "copy.h"

/* ---- the temporary file goes, whatever happens ----------------------------------------------- */

static char doomed[PATH_MAX];
static const int deadly[] = { SIGHUP, SIGINT, SIGPIPE, SIGTERM };

static void remove_doomed(int signal_number)
{
	unlink(doomed);
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static void guard(const char *temporary)
{
	struct sigaction action = { .sa_handler = remove_doomed, .sa_flags = SA_NODEFER };
	struct sigaction before;

	snprintf(doomed, sizeof(doomed), "%s", temporary);
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		if (!sigaction(deadly[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaction(deadly[i], &action, NULL);
}

static void unguard(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL }, before;

	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		if (!sigaction(deadly[i], NULL, &before) && before.sa_handler == remove_doomed)
			sigaction(deadly[i], &action, NULL);
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Whatever a file's errno is, its exit code is not one that speaks of peers. */
static int refuse(const char *verb, const char *path)
{
	return fail(EIO, "cannot %s %s: %s", verb, path, strerror(errno));
}

int file_open_source(struct end *end, uint64_t offset)
{
	struct stat status;
	off_t size;

	if (strcmp(end->text, "-") == 0)
		end->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
	else
		end->fd = open(end->text, O_RDONLY | O_CLOEXEC);
	if (end->fd < 0 || fstat(end->fd, &status))
		return refuse("open", end->name);
	if (S_ISDIR(status.st_mode))
		return fail(EISDIR, "cannot copy %s: it is a directory", end->name);
	end->kind = S_ISREG(status.st_mode) || S_ISBLK(status.st_mode) ? END_FILE : END_STREAM;
	end->offset = offset;
	end->length = COPY_UNKNOWN;
	if (end->kind == END_STREAM)
		return offset ? fail(EINVAL, "%s has no offsets: it is not a file", end->name) : 0;
	size = lseek(end->fd, 0, SEEK_END);
	if (size < 0)
		return refuse("find the end of", end->name);
	if (offset > (uint64_t)size)
		return fail(EINVAL, "%s has %lld bytes, so there is nothing at offset %llu",
			    end->name, (long long)size, (unsigned long long)offset);
	end->length = (uint64_t)size - offset;
	posix_fadvise(end->fd, (off_t)offset, 0, POSIX_FADV_SEQUENTIAL);
	return 0;
}

/* ---- targets --------------------------------------------------------------------------------- */

/* ".NAME.XXXXXX" in the directory of `path`. */
static char *name_temporary(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char *out;

	/* Cut where the name would become too long for a directory entry. */
	if (asprintf(&out, "%.*s.%.200s.XXXXXX", (int)(name - path), path, name) < 0)
		return NULL;
	return out;
}

/* What is in the file already, for a copy that starts at an offset. */
static int keep_content(struct end *end)
{
	int old = open(end->path, O_RDONLY | O_CLOEXEC), code = 0;
	static char buffer[1 << 16];
	ssize_t got;

	if (old < 0)
		return errno == ENOENT ? 0 : refuse("read", end->path);
	while ((got = copy_file_range(old, NULL, end->fd, NULL, 1 << 30, 0)) > 0)
		;
	/* Not every file system can, and both descriptors stand where it stopped. */
	while (got < 0 && !code) {
		ssize_t bytes = read(old, buffer, sizeof(buffer));

		if (bytes < 0)
			code = refuse("read", end->path);
		else if (bytes == 0)
			break;
		errno = ENOSPC; /* a short write sets none */
		if (bytes > 0 && write(end->fd, buffer, (size_t)bytes) != bytes)
			code = refuse("write", end->name);
	}
	close(old);
	return code;
}

static int make_temporary(struct end *end, bool keep)
{
	mode_t mask = umask(0), mode = 0666 & ~mask;
	struct stat status;

	umask(mask);
	/* A link stays, and the file that it names is replaced. */
	end->path = realpath(end->text, NULL);
	if (end->path && (access(end->path, W_OK) || stat(end->path, &status)))
		return refuse("write", end->name);
	if (end->path)
		mode = status.st_mode & 0777;
	else
		end->path = strdup(end->text);
	end->temporary = end->path ? name_temporary(end->path) : NULL;
	if (!end->temporary)
		return fail(ENOMEM, "out of memory");
	end->fd = mkostemp(end->temporary, O_CLOEXEC);
	if (end->fd < 0) {
		int code = refuse("create", end->name);

		free(end->temporary);
		end->temporary = NULL;
		return code;
	}
	guard(end->temporary);
	if (fchmod(end->fd, mode))
		return refuse("set the mode of", end->name);
	end->kind = END_FILE;
	return keep ? keep_content(end) : 0;
}

int file_open_target(struct end *end, uint64_t offset, bool keep)
{
	bool output = strcmp(end->text, "-") == 0;
	struct stat status;

	end->offset = offset;
	end->length = COPY_UNKNOWN;
	if (!output && (stat(end->text, &status) || S_ISREG(status.st_mode)))
		return make_temporary(end, keep);
	if (!output && S_ISDIR(status.st_mode))
		return fail(EISDIR, "cannot write %s: it is a directory; name a file in it",
			    end->name);
	end->kind = END_STREAM;
	end->fd = output ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) :
			   open(end->text, O_WRONLY | O_CLOEXEC);
	if (end->fd < 0)
		return refuse("open", end->name);
	if (keep)
		return fail(EINVAL, "%s has no offsets: it is not a file", end->name);
	return 0;
}

int file_reserve(struct end *end, uint64_t length)
{
	if (end->kind != END_FILE || !length || length > INT64_MAX - end->offset)
		return 0;
	if (!fallocate(end->fd, 0, (off_t)end->offset, (off_t)length))
		return 0;
	if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
		return refuse("write", end->name);
	return 0; /* a file system that cannot: writing will tell */
}

int file_commit(struct end *end)
{
	int closed;

	if (!end->temporary)
		return 0;
	/* Some file systems tell only now that a write has failed. */
	closed = close(end->fd);
	end->fd = -1;
	if (closed)
		return refuse("write", end->name);
	if (rename(end->temporary, end->path))
		return refuse("rename the finished copy to", end->name);
	unguard();
	free(end->temporary);
	end->temporary = NULL;
	return 0;
}

void file_close(struct end *end)
{
	if (end->temporary) {
		unlink(end->temporary);
		unguard();
	}
	if (end->fd >= 0)
		close(end->fd);
	free(end->temporary);
	free(end->path);
	end->temporary = end->path = NULL;
	end->fd = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

int file_read(struct end *end, void *buffer, uint64_t length, uint64_t position, uint64_t *got)
{
	uint64_t done = 0;
	ssize_t bytes;

	while (done < length) {
		if (end->kind == END_STREAM)
			bytes = read(end->fd, (char *)buffer + done, length - done);
		else
			bytes = pread(end->fd, (char *)buffer + done, length - done,
				      (off_t)(end->offset + position + done));
		if (bytes == 0)
			break;
		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes < 0)
			return refuse("read", end->name);
		done += (uint64_t)bytes;
	}
	*got = done;
	return 0;
}

int file_write(struct end *end, const void *buffer, uint64_t length, uint64_t position)
{
	uint64_t done = 0;
	ssize_t bytes;

	while (done < length) {
		if (end->kind == END_STREAM)
			bytes = write(end->fd, (const char *)buffer + done, length - done);
		else
			bytes = pwrite(end->fd, (const char *)buffer + done, length - done,
				       (off_t)(end->offset + position + done));
		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes == 0)
			errno = ENOSPC;
		if (bytes <= 0)
			return refuse("write", end->name);
		done += (uint64_t)bytes;
	}
	return 0;
}
