/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ways to a CPU window there are: one is opened in each, onto memory of an engine's own. In a
 * recorded tree windows.txt has a line for each: "window NAME error=ERRNO why=TEXT".
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <wherry/wherry.h>

#include "doctor/doctor.h"

#define BYTES ((size_t)64 << 10)

static void try_ways(struct wh_engine *engine, const void *memory, struct window_facts *out)
{
	static const char *const names[] = { "driver", "dmabuf", "rm" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct wh_window_options options = { .size = sizeof(options),
						     .backends = names[i] };
		struct wh_window *window;
		char *why = out->ways[out->count].why;
		int error = wh_window_open(engine, memory, BYTES, &options, &window);

		snprintf(out->ways[out->count].name, sizeof(out->ways[0].name), "%s", names[i]);
		out->ways[out->count].error = -error;
		if (error)
			snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
		else
			wh_window_close(window);
		out->count++;
	}
}

static void try_gpu(const char *gpu, struct window_facts *out)
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
		try_ways(engine, at, out);
		wh_memory_free(engine, at);
	}
	wh_engine_close(engine);
}

static void read_window_line(const char *line, void *arg)
{
	struct window_facts *out = arg;
	const char *why = strstr(line, " why=");
	char name[16];

	if (out->count == sizeof(out->ways) / sizeof(out->ways[0]) ||
	    sscanf(line, "window %15s", name) != 1)
		return;
	memcpy(out->ways[out->count].name, name, sizeof(name));
	out->ways[out->count].error = (int)facts_value(line, "error");
	snprintf(out->ways[out->count++].why, DOCTOR_WHY, "%s", why ? why + strlen(" why=") : "-");
}

void facts_windows(const struct wh_tree *tree, const char *gpu, struct window_facts *out)
{
	FILE *file;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		facts_lines(tree, "/windows.txt", read_window_line, out);
		return;
	}
	try_gpu(gpu, out);
	file = out->count ? facts_file(tree, "windows.txt") : NULL;
	if (!file)
		return;
	for (int i = 0; i < out->count; i++)
		fprintf(file, "window %s error=%d why=%s\n", out->ways[i].name, out->ways[i].error,
			out->ways[i].why);
	fclose(file);
}
