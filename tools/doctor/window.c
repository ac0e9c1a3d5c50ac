/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which backends can open a CPU window: each opens one on memory of an engine of its own. A
 * recorded tree has windows.txt with a line for each: "window NAME error=ERRNO why=TEXT".
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <wherry/wherry.h>

#include "doctor/doctor.h"

#define BYTES ((size_t)64 << 10)

static void window_try_backends(struct wh_engine *engine, const void *memory,
				struct window_facts *out)
{
	static const char *const names[] = { "driver", "dmabuf", "rm" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct wh_window_options options = { .size = sizeof(options),
						     .backends = names[i] };
		struct wh_window *window;
		char *why = out->backends[out->count].why;
		int error = wh_window_open(engine, memory, BYTES, &options, &window);

		snprintf(out->backends[out->count].name, sizeof(out->backends[0].name), "%s",
			 names[i]);
		out->backends[out->count].error = -error;
		if (error)
			snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
		else
			wh_window_close(window);
		out->count++;
	}
}

static void window_try_gpu(const char *gpu, struct window_facts *out)
{
	static const char *const config[] = { "transports=self", "observe=off", "registry=p2p",
					      "window=driver,dmabuf,rm", NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = config };
	struct wh_memory_options memory = { .size = sizeof(memory), .kind = WH_MEMORY_DEVICE };
	struct wh_engine *engine;
	char location[40];
	void *at;

	if (wh_engine_open(&options, &engine))
		return;
	snprintf(location, sizeof(location), "cuda:%.19s", gpu);
	memory.location = location;
	if (!wh_memory_alloc(engine, BYTES, &memory, &at)) {
		window_try_backends(engine, at, out);
		wh_memory_free(engine, at);
	}
	wh_engine_close(engine);
}

static void window_read_line(const char *line, void *arg)
{
	struct window_facts *out = arg;
	const char *why = strstr(line, " why=");
	char name[16];

	if (out->count == sizeof(out->backends) / sizeof(out->backends[0]) ||
	    sscanf(line, "window %15s", name) != 1)
		return;
	memcpy(out->backends[out->count].name, name, sizeof(name));
	out->backends[out->count].error = (int)facts_value(line, "error");
	snprintf(out->backends[out->count++].why, DOCTOR_WHY, "%s",
		 why ? why + strlen(" why=") : "-");
}

void facts_windows(const struct wh_tree *tree, const char *gpu, struct window_facts *out)
{
	FILE *file;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		facts_lines(tree, "/windows.txt", window_read_line, out);
		return;
	}
	window_try_gpu(gpu, out);
	file = out->count ? facts_file(tree, "windows.txt") : NULL;
	if (!file)
		return;
	for (int i = 0; i < out->count; i++)
		fprintf(file, "window %s error=%d why=%s\n", out->backends[i].name,
			out->backends[i].error, out->backends[i].why);
	fclose(file);
}
