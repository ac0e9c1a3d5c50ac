/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of wherry window: an engine, GPU memory, windows on it, and the CUDA driver. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "engine.h"
#include "window/window.h"

__attribute__((format(printf, 3, 4))) static int text_fail(char text[WINDOW_TEXT], int error,
							   const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, WINDOW_TEXT, format, list);
	va_end(list);
	return error;
}

/* Open an engine with the command line's settings. The caller reports errors. */
static int fixture_open_engine(struct window_fixture *fixture, char text[WINDOW_TEXT])
{
	const struct arguments *arguments = fixture->choices->arguments;
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	const char **settings = calloc((size_t)arguments->all_count + 1, sizeof(*settings));
	const char *setting;
	int cursor = 0, error;
	size_t count = 0;

	if (!settings)
		return text_fail(text, -ENOMEM, "out of memory");
	while ((setting = argument_next(arguments, "config", &cursor)))
		settings[count++] = setting;
	options.config = settings;
	error = wh_engine_open(&options, &fixture->engine);
	free(settings);
	return error ? text_fail(text, error, "cannot open an engine: %s", wh_error_text()) : 0;
}

static int fixture_open_driver(struct window_fixture *fixture, char text[WINDOW_TEXT])
{
	char why[GPU_TEXT];

	fixture->gpu = gpu_open(bench_setting(fixture->choices->arguments, "cuda"), why);
	if (!fixture->gpu)
		return text_fail(text, -ENODEV, "%s", why);
	if (gpu_of(fixture->gpu, fixture->address, &fixture->device))
		return text_fail(text, -EIO, "%s", fixture->gpu->text);
	/* Create its context now, so that several threads may enter it. */
	if (gpu_enter(fixture->gpu, fixture->device))
		return text_fail(text, -EIO, "%s", fixture->gpu->text);
	gpu_leave(fixture->gpu);
	return 0;
}

int window_fixture_open(struct window_fixture *fixture, const struct window_choices *choices,
			const struct memory *memory, uint64_t length, char text[WINDOW_TEXT])
{
	void *address = NULL;
	int error;

	*fixture =
		(struct window_fixture){ .choices = choices, .memory = memory, .length = length };
	error = fixture_open_engine(fixture, text);
	if (error)
		return error;
	error = memory_alloc(fixture->engine, memory, length, &address);
	if (error)
		text_fail(text, error, "%s", wh_error_text());
	fixture->address = address;
	if (!error)
		error = fixture_open_driver(fixture, text);
	if (error) {
		char more[WINDOW_TEXT];

		window_fixture_close(fixture, more);
	}
	return error;
}

int window_fixture_close(struct window_fixture *fixture, char text[WINDOW_TEXT])
{
	int error = 0;

	gpu_close(fixture->gpu);
	fixture->gpu = NULL;
	if (fixture->address)
		error = wh_memory_free(fixture->engine, fixture->address);
	fixture->address = NULL;
	if (error)
		text_fail(text, error, "cannot free the memory: %s", wh_error_text());
	if (fixture->engine && wh_engine_close(fixture->engine) && !error)
		error = text_fail(text, -EIO, "cannot close the engine: %s", wh_error_text());
	fixture->engine = NULL;
	return error;
}

int window_fixture_window(const struct window_fixture *fixture, uint64_t offset, uint64_t length,
			  struct wh_window **out)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = fixture->choices->backend };

	return wh_window_open(fixture->engine, fixture->address + offset, length, &options, out);
}

const char *window_mapping_name(uint32_t mapping)
{
	static const char *const names[] = { "staged", "write-combining", "cached", "device" };

	return mapping < sizeof(names) / sizeof(names[0]) ? names[mapping] : "unknown";
}

void window_describe(const struct wh_window_info *info, char *out, size_t size)
{
	if (!info->pointer)
		snprintf(out, size, "staged, by copy engine");
	else
		snprintf(out, size, "%s, %s, %s/%s", info->backend,
			 window_mapping_name(info->mapping), info->writes, info->reads);
}

int window_fail(const struct memory *memory, int error, const char *text)
{
	/* A missing device file is a missing backend. */
	return fail(error == -ENOENT ? -ENODEV : error, "%s: %s", memory->name, text);
}
