/* SPDX-License-Identifier: Apache-2.0 */
/* A file or stream as an end of wherry copy. A target file appears under its name when it is
 * complete. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "copy/copy.h"

/* ---- removing a named temporary file at a signal --------------------------------------------- */

static char doomed[PATH_MAX];
static const int deadly[] = { SIGHUP, SIGINT, SIGPIPE, SIGTERM };

static void remove_doomed(int signal_number)
{
	unlink(doomed);
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static void temporary_guard(const char *temporary)
{
	struct sigaction action = { .sa_handler = remove_doomed, .sa_flags = SA_NODEFER };
	struct sigaction before;

	snprintf(doomed, sizeof(doomed), "%s", temporary);
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		if (!sigaction(deadly[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaction(deadly[i], &action, NULL);
}

static void temporary_unguard(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL }, before;

	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		if (!sigaction(deadly[i], NULL, &before) && before.sa_handler == remove_doomed)
			sigaction(deadly[i], &action, NULL);
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Whatever a file's errno is, its exit code must not be one that is about peers. */
static int file_refuse(const char *verb, const char *path)
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
		return file_refuse("open", end->name);
	if (S_ISDIR(status.st_mode))
		return fail(EISDIR, "cannot copy %s: it is a directory", end->name);
	end->kind = S_ISREG(status.st_mode) || S_ISBLK(status.st_mode) ? END_FILE : END_STREAM;
	end->offset = offset;
	end->length = COPY_UNKNOWN;
	if (end->kind == END_STREAM)
		return offset ? fail(EINVAL, "%s is not a file: it has no offsets", end->name) : 0;
	size = lseek(end->fd, 0, SEEK_END);
	if (size < 0)
		return file_refuse("find the end of", end->name);
	if (offset > (uint64_t)size)
		return fail(EINVAL, "%s has %lld bytes: there is nothing at offset %llu", end->name,
			    (long long)size, (unsigned long long)offset);
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

	/* Shortened where the name would become too long for a directory entry. */
	if (asprintf(&out, "%.*s.%.200s.XXXXXX", (int)(name - path), path, name) < 0)
		return NULL;
	return out;
}

/* Copy the content of `from`, from its position up to `to`. 0, or -1 with errno; *reading: reading
 * failed, not writing. */
static int copy_content(int from, int to, bool *reading)
{
	static char buffer[1 << 16];
	ssize_t got, put;

	while ((got = copy_file_range(from, NULL, to, NULL, 1 << 30, 0)) > 0)
		;
	/* Not every file system can do this. Both descriptors are where it stopped. */
	while (got) {
		*reading = true;
		got = read(from, buffer, sizeof(buffer));
		if (got < 0)
			return -1;
		*reading = false;
		errno = ENOSPC; /* a short write sets none */
		put = got ? write(to, buffer, (size_t)got) : 0;
		if (put != got)
			return -1;
	}
	return 0;
}

/* Copy the existing content of the file, for a copy that starts at an offset. */
static int keep_content(struct end *end)
{
	int old = open(end->path, O_RDONLY | O_CLOEXEC), code = 0;
	bool reading;

	if (old < 0)
		return errno == ENOENT ? 0 : file_refuse("read", end->path);
	if (copy_content(old, end->fd, &reading))
		code = reading ? file_refuse("read", end->path) : file_refuse("write", end->name);
	close(old);
	return code;
}

static void link_of(int fd, char out[32])
{
	snprintf(out, 32, "/proc/self/fd/%d", fd);
}

/* Create a file without a name in the directory of `path`: it vanishes with this process, however
 * that ends. -1: the file system cannot, or could not name it later. */
static int open_unnamed(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int fd = directory ? open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
	char name[32];

	free(directory);
	link_of(fd, name);
	if (fd < 0 || !access(name, F_OK))
		return fd;
	close(fd);
	return -1;
}

/* Create a named temporary file beside the target, removed at a signal that can be caught. -1 with
 * errno. */
static int open_temporary(struct end *end)
{
	int fd;

	end->temporary = name_temporary(end->path);
	if (!end->temporary) {
		errno = ENOMEM;
		return -1;
	}
	fd = mkostemp(end->temporary, O_CLOEXEC);
	if (fd >= 0) {
		temporary_guard(end->temporary);
		return fd;
	}
	free(end->temporary);
	end->temporary = NULL;
	return -1;
}

static int make_temporary(struct end *end, bool keep)
{
	mode_t mask = umask(0), mode = 0666 & ~mask;
	struct stat status;

	umask(mask);
	/* A link stays, and the file that it names is replaced. */
	end->path = realpath(end->text, NULL);
	if (end->path && (access(end->path, W_OK) || stat(end->path, &status)))
		return file_refuse("write", end->name);
	if (end->path)
		mode = status.st_mode & 0777;
	else
		end->path = strdup(end->text);
	if (!end->path)
		return fail(ENOMEM, "out of memory");
	end->fd = open_unnamed(end->path);
	if (end->fd < 0)
		end->fd = open_temporary(end);
	if (end->fd < 0)
		return file_refuse("create", end->name);
	if (fchmod(end->fd, mode))
		return file_refuse("set the mode of", end->name);
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
		return file_refuse("open", end->name);
	if (keep)
		return fail(EINVAL, "%s is not a file: it has no offsets", end->name);
	return 0;
}

int file_reserve(struct end *end, uint64_t length)
{
	if (end->kind != END_FILE || !length)
		return 0;
	if (length > INT64_MAX - end->offset) {
		errno = EFBIG;
		return file_refuse("write", end->name);
	}
	if (!fallocate(end->fd, 0, (off_t)end->offset, (off_t)length))
		return 0;
	if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
		return file_refuse("write", end->name);
	return 0; /* this file system cannot reserve: writing will fail instead */
}

/* Give the unnamed file a temporary name. 0, or -1 with errno; EEXIST: try another. */
static int link_temporary(struct end *end, const char *unnamed)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	char *digits;
	uint8_t random[6];

	end->temporary = name_temporary(end->path);
	if (!end->temporary || getrandom(random, sizeof(random), 0) != sizeof(random)) {
		free(end->temporary);
		end->temporary = NULL;
		errno = ENOMEM;
		return -1;
	}
	digits = end->temporary + strlen(end->temporary) - sizeof(random);
	for (size_t i = 0; i < sizeof(random); i++)
		digits[i] = letters[random[i] % (sizeof(letters) - 1)];
	temporary_guard(end->temporary);
	if (!linkat(AT_FDCWD, unnamed, AT_FDCWD, end->temporary, AT_SYMLINK_FOLLOW))
		return 0;
	temporary_unguard();
	free(end->temporary);
	end->temporary = NULL;
	return -1;
}

/* The file system has files without a name but refuses to name them later: copy the content into a
 * named one. */
static int copy_temporary(struct end *end)
{
	struct stat status;
	int fd = open_temporary(end);
	bool reading;

	if (fd < 0 || fstat(end->fd, &status) || fchmod(fd, status.st_mode & 0777) ||
	    lseek(end->fd, 0, SEEK_SET) < 0 || copy_content(end->fd, fd, &reading)) {
		if (fd >= 0)
			close(fd);
		return file_refuse("write", end->name);
	}
	close(end->fd);
	end->fd = fd;
	return 0;
}

/* No call links an unnamed file over an existing one: give it a temporary name, then rename it. */
static int commit_unnamed(struct end *end)
{
	char unnamed[32];
	int error;

	link_of(end->fd, unnamed);
	error = linkat(AT_FDCWD, unnamed, AT_FDCWD, end->path, AT_SYMLINK_FOLLOW);
	if (!error)
		return 0;
	while (error && errno == EEXIST)
		error = link_temporary(end, unnamed);
	return error ? copy_temporary(end) : 0;
}

int file_commit(struct end *end)
{
	int again, code;

	if (!end->path)
		return 0;
	/* Some file systems report a failed write only at close(). */
	again = dup(end->fd);
	if (again < 0 || close(again))
		return file_refuse("write", end->name);
	code = end->temporary ? 0 : commit_unnamed(end);
	if (code || !end->temporary)
		return code;
	again = end->fd;
	end->fd = -1;
	if (close(again)) /* closing a duplicate is enough */
		return file_refuse("write", end->name);
	if (rename(end->temporary, end->path))
		return file_refuse("rename the finished copy to", end->name);
	temporary_unguard();
	free(end->temporary);
	end->temporary = NULL;
	return 0;
}

void file_close(struct end *end)
{
	if (end->temporary) {
		unlink(end->temporary);
		temporary_unguard();
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
			return file_refuse("read", end->name);
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
			return file_refuse("write", end->name);
		done += (uint64_t)bytes;
	}
	return 0;
}
