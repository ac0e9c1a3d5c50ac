/* SPDX-License-Identifier: Apache-2.0 */
/* wherry serve --file: files as regions. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "engine.h"
#include "serve/file.h"

/* Are these the letters of a region's name? */
static bool name_is_valid(const char *name)
{
	for (const char *c = name; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
			return false;
	return *name;
}

static int take_name(const char *option, const char *text, const char *name,
		     struct served_file *out)
{
	if (strlen(name) >= sizeof(out->name) || !name_is_valid(name))
		return usage_error("%s: '%s': '%.80s' is not 1 to 63 of A-Z a-z 0-9 . _ -; "
				   "add :name=NAME",
				   option, text, name);
	snprintf(out->name, sizeof(out->name), "%s", name);
	return 0;
}

/* Take one word behind the path. *known: it is one. */
static int take_word(const char *option, const char *text, const char *word,
		     struct served_file *out, bool *known)
{
	static const char *const durable[] = { "none", "data", "all" };

	*known = true;
	if (strcmp(word, "rw") == 0) {
		out->writable = true;
		return 0;
	}
	if (strncmp(word, "grow=", 5) == 0) {
		if (parse_size(word + 5, "--file: grow", &out->grow))
			return EXIT_USAGE;
		return out->grow ? 0 : usage_error("%s: '%s': grow is 0", option, text);
	}
	for (uint32_t i = 0; i < 3 && strncmp(word, "durable=", 8) == 0; i++)
		if (strcmp(word + 8, durable[i]) == 0) {
			out->durable = i;
			return 0;
		}
	if (strncmp(word, "durable=", 8) == 0)
		return usage_error("%s: '%s': durable is none, data or all", option, text);
	if (strncmp(word, "name=", 5) == 0)
		return take_name(option, text, word + 5, out);
	*known = false;
	return 0;
}

int served_file_parse(const char *option, const char *text, bool read_only, struct served_file *out)
{
	char *colon, *slash;
	bool known = true;
	int code = 0;

	*out = (struct served_file){ .writable = false };
	if ((size_t)snprintf(out->path, sizeof(out->path), "%s", text) >= sizeof(out->path))
		return usage_error("%s: the path is too long", option);
	/* From the end, because a path may have colons. */
	while (!code && known && (colon = strrchr(out->path, ':'))) {
		code = take_word(option, text, colon + 1, out, &known);
		if (known)
			*colon = 0;
	}
	if (code)
		return code;
	for (size_t n = strlen(out->path); n > 1 && out->path[n - 1] == '/'; n--)
		out->path[n - 1] = 0;
	if (!out->path[0])
		return usage_error("%s: '%s' has no path", option, text);
	if (out->grow && !out->writable)
		return usage_error("%s: '%s': a file that grows is written: add :rw", option, text);
	if (out->writable && read_only)
		return usage_error("%s: '%s': --read-only and :rw contradict each other", option,
				   text);
	slash = strrchr(out->path, '/');
	return out->name[0] ? 0 : take_name(option, text, slash ? slash + 1 : out->path, out);
}

/* Without following a link: who may write to the directory could make the server offer any file. */
static int file_open(const struct served_file *file)
{
	int how = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

	if (!file->writable)
		return open(file->path, how | O_RDONLY);
	return open(file->path, how | O_RDWR | (file->grow ? O_CREAT : 0), 0666);
}

int served_file_publish(struct wh_engine *engine, struct served_file *file)
{
	struct wh_region_options region = {
		.size = sizeof(region),
		.name = file->name,
		.access = WH_ACCESS_READ | WH_ACCESS_LIST | (file->writable ? WH_ACCESS_WRITE : 0),
	};
	struct wh_file_options options = {
		.size = sizeof(options),
		.length = file->grow,
		.flags = (file->writable ? WH_FILE_WRITE : 0) | (file->grow ? WH_FILE_GROW : 0),
		.durable = file->durable,
		.region = &region,
	};
	char what[160];
	int fd = file_open(file), error;

	if (fd < 0)
		return fail(errno, "cannot serve %s: %s", file->path,
			    errno == ELOOP ? "it is a symbolic link" : strerror(errno));
	snprintf(what, sizeof(what), "cannot serve %.128s", file->path);
	error = wh_file_register_fd(engine, fd, &options, &file->region);
	close(fd);
	return error ? engine_fail(error, what) : 0;
}
