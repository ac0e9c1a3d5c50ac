/* SPDX-License-Identifier: Apache-2.0 */
/* JSON on stdout and documents written to files, in place of an earlier version only once
 * complete. */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

#define SCHEMA 1

json_t *output_new(void)
{
	json_t *object = json_object();

	if (!object || json_object_set_new(object, "schema", json_integer(SCHEMA)))
		exit(fail(ENOMEM, "out of memory"));
	return object;
}

int output_print(json_t *object)
{
	int error = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));

	json_decref(object);
	putchar('\n');
	if (error || fflush(stdout))
		return fail(EIO, "cannot write to standard output: %s", strerror(errno));
	return EXIT_PASS;
}

json_t *output_text(const char *text)
{
	json_t *value = text && *text ? json_string(text) : json_null();
	char *copy;

	if (value)
		return value;
	/* Names from other programs need not be UTF-8. */
	copy = strdup(text);
	for (char *c = copy; c && *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	value = copy ? json_string(copy) : NULL;
	free(copy);
	return value ? value : json_null();
}

/* ---- files ----------------------------------------------------------------------------------- */

int output_open(struct output_file *file, const char *path)
{
	*file = (struct output_file){ .path = path, .table = stdout, .fd = -1 };
	if (!path)
		return 0;
	if (!strcmp(path, "-")) {
		file->table = stderr;
		return 0;
	}
	file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	file->fresh = file->fd >= 0;
	if (file->fd < 0 && errno == EEXIST)
		file->fd = open(path, O_WRONLY | O_CLOEXEC);
	if (file->fd < 0)
		return fail(errno, "cannot write %s: %s", path, strerror(errno));
	return 0;
}

static int write_all(int fd, const char *text, size_t length)
{
	while (length) {
		ssize_t n = write(fd, text, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		length -= (size_t)n;
	}
	return 0;
}

int output_write_text(struct output_file *file, const char *text, size_t length)
{
	bool is_stdout = file->fd < 0;
	struct stat status;
	int error = 0;

	if (is_stdout)
		fflush(stdout);
	else if (!fstat(file->fd, &status) && S_ISREG(status.st_mode) && ftruncate(file->fd, 0))
		error = -errno;
	if (!error)
		error = write_all(is_stdout ? STDOUT_FILENO : file->fd, text, length);
	if (!is_stdout && close(file->fd) && !error)
		error = -errno;
	file->fd = -1;
	if (!error)
		return EXIT_PASS;
	return fail(error, "cannot write %s: %s", is_stdout ? "to standard output" : file->path,
		    strerror(-error));
}

int output_write(struct output_file *file, json_t *object)
{
	size_t length;
	char *text;
	int code;

	if (file->fd < 0)
		return output_print(object);
	text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
	json_decref(object);
	if (!text)
		return fail(ENOMEM, "out of memory");
	length = strlen(text);
	text[length] = '\n'; /* over the terminating 0 */
	code = output_write_text(file, text, length + 1);
	free(text);
	return code;
}

void output_close(struct output_file *file)
{
	if (file->fd < 0)
		return;
	close(file->fd);
	file->fd = -1;
	if (file->fresh)
		unlink(file->path);
}
