/* SPDX-License-Identifier: Apache-2.0 */
/* Write into GPU memory with the CPU, through a window, and read back what the GPU sees. */
#include <stdio.h>
#include <string.h>
#include <wherry/wherry.h>

int main(void)
{
	struct wh_memory_options gpu = { .size = sizeof(gpu), .kind = WH_MEMORY_DEVICE };
	struct wh_window_options copies = { .size = sizeof(copies), .backends = "staged" };
	struct wh_window_info info = { .size = sizeof(info) };
	char from[] = "across the river", to[sizeof(from)] = "";
	struct wh_window *window, *staged;
	struct wh_engine *engine;
	void *memory;

	if (wh_engine_open(NULL, &engine) || wh_memory_alloc(engine, 65536, &gpu, &memory) ||
	    wh_window_open(engine, memory, 65536, NULL, &window) ||
	    wh_window_open(engine, memory, 65536, &copies, &staged))
		return fprintf(stderr, "%s\n", wh_error_text()), 1;

	/* The stores are issued when it returns, and have arrived after the flush. */
	if (wh_window_copy_to(window, 1000, from, sizeof(from)) || wh_window_flush(window))
		return fprintf(stderr, "%s\n", wh_error_text()), 1;
	/* A copy by the GPU's copy engine shows what the GPU sees. */
	if (wh_window_copy_from(staged, 1000, to, sizeof(to)) || wh_window_info(window, &info))
		return fprintf(stderr, "%s\n", wh_error_text()), 1;
	printf("%s, by %s (%s)\n", to, info.backend, info.said);

	/* A program may also store through the pointer. */
	memcpy((char *)info.pointer + 1000, "and back", sizeof("and back"));
	wh_window_flush(window);
	if (wh_window_copy_from(staged, 1000, to, sizeof(to)))
		return fprintf(stderr, "%s\n", wh_error_text()), 1;
	puts(to);
	return wh_window_close(staged) || wh_window_close(window) ||
	       wh_memory_free(engine, memory) || wh_engine_close(engine);
}
