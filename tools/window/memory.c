/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU, windows onto it, and the driver beside. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "engine.h"
#include "window/window.h"

__attribute__((format(printf, 3, 4))) static int say(char text[WINDOW_TEXT], int error,
						     const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, WINDOW_TEXT, format, list);
	va_end(list);
	return error;
}

/* The engine's settings are those of the command line; who is told of its errors is the caller. */
static int open_engine(struct window_place *place, char text[WINDOW_TEXT])
{
	const struct arguments *arguments = place->choices->arguments;
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	const char **settings = calloc((size_t)arguments->all_count + 1, sizeof(*settings));
	const char *setting;
	int cursor = 0, error;
	size_t count = 0;

	if (!settings)
		return say(text, -ENOMEM, "out of memory");
	while ((setting = argument_next(arguments, "config", &cursor)))
		settings[count++] = setting;
	options.config = settings;
	error = wh_engine_open(&options, &place->engine);
	free(settings);
	return error ? say(text, error, "cannot open an engine: %s", wh_error_text()) : 0;
}

static int open_driver(struct window_place *place, char text[WINDOW_TEXT])
{
	char why[GPU_TEXT];

	place->gpu = gpu_open(bench_knob(place->choices->arguments, "cuda"), why);
	if (!place->gpu)
		return say(text, -ENODEV, "%s", why);
	if (gpu_of(place->gpu, place->address, &place->device))
		return say(text, -EIO, "%s", place->gpu->text);
	/* Its context is there from now on, so that several threads may enter it. */
	if (gpu_enter(place->gpu, place->device))
		return say(text, -EIO, "%s", place->gpu->text);
	gpu_leave(place->gpu);
	return 0;
}

int window_place_open(struct window_place *place, const struct window_choices *choices,
		      const struct memory *memory, uint64_t length, char text[WINDOW_TEXT])
{
	void *address = NULL;
	int error;

	*place = (struct window_place){ .choices = choices, .memory = memory, .length = length };
	error = open_engine(place, text);
	if (error)
		return error;
	error = memory_alloc(place->engine, memory, length, &address);
	if (error)
		say(text, error, "%s", wh_error_text());
	place->address = address;
	if (!error)
		error = open_driver(place, text);
	if (error) {
		char more[WINDOW_TEXT];

		window_place_close(place, more);
	}
	return error;
}

int window_place_close(struct window_place *place, char text[WINDOW_TEXT])
{
	int error = 0;

	gpu_close(place->gpu);
	place->gpu = NULL;
	if (place->address)
		error = wh_memory_free(place->engine, place->address);
	place->address = NULL;
	if (error)
		say(text, error, "cannot free the memory: %s", wh_error_text());
	if (place->engine && wh_engine_close(place->engine) && !error)
		error = say(text, -EIO, "cannot close the engine: %s", wh_error_text());
	place->engine = NULL;
	return error;
}

int window_place_window(const struct window_place *place, uint64_t offset, uint64_t length,
			struct wh_window **out)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = place->choices->backend };

	return wh_window_open(place->engine, place->address + offset, length, &options, out);
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
	/* A node that is not there is a backend that is not there. */
	return fail(error == -ENOENT ? -ENODEV : error, "%s: %s", memory->name, text);
}
