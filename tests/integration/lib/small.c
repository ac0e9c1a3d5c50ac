/* SPDX-License-Identifier: Apache-2.0 */
/* small.c: two processes with small transfers between them, and the bytes expected in both */
#include "small.h"

#include "windows.h"

/* Slow builds skip what a fast build covers without windows. */
static const char *missing_time(void)
{
	return HARNESS_SLOW && getenv("TEST_CUDA") && !has_stand_in() ?
		       "without windows it is for a build without a sanitizer" :
		       NULL;
}

const struct route needs_time = { .name = "time", .missing = missing_time };

/* True if windows open onto memory of this process. */
static bool windows_open(struct wh_engine *engine)
{
	struct wh_memory_options options = { .size = sizeof(options), .kind = WH_MEMORY_VMM };
	struct wh_window *window;
	void *memory;
	bool opens;

	want(0, wh_memory_alloc(engine, LENGTH, &options, &memory));
	opens = !wh_window_open(engine, memory, LENGTH, NULL, &window);
	if (opens)
		want(0, wh_window_close(window));
	want(0, wh_memory_free(engine, memory));
	return opens;
}

void small_open_with(struct small *s, uint32_t here, uint32_t there, const char *elsewhere,
		     struct child *child)
{
	gpu_pair_open_with(&s->p, here, NULL, there, elsewhere, LENGTH, child);
	s->windows = windows_open(s->p.engine);
	s->ours = malloc(AREA);
	s->theirs = malloc(AREA);
	s->seen = malloc(AREA);
	assert_true(s->ours && s->theirs && s->seen);
	gpu_pair_fill(&s->p, 3);
	bytes_get(s->ours, s->p.local, AREA, here);
	child_fetch(s->p.child, s->p.memory, 0, AREA, s->theirs);
	use_default_costs();
}

void small_open(struct small *s, uint32_t here, uint32_t there)
{
	small_open_with(s, here, there, NULL, child_start(NULL));
}

void small_close(struct small *s)
{
	if (getenv("TEST_CUDA"))
		fake_heal();
	gpu_pair_close(&s->p);
	want_no_windows();
	free(s->ours);
	free(s->theirs);
	free(s->seen);
}

struct wh_transfer small_transfer(const struct small *s, uint32_t op, uint64_t local,
				  uint64_t remote, uint64_t length)
{
	return (struct wh_transfer){ .local = s->p.region,
				     .local_offset = local,
				     .remote = s->p.remote.id,
				     .remote_offset = remote,
				     .length = length,
				     .op = op };
}

struct wh_batch *small_batch(struct small *s, const struct wh_transfer *transfers, size_t count)
{
	struct wh_batch *batch;

	want(0, wh_batch_new(s->p.peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, count));
	return batch;
}

void small_expect(struct small *s, const struct wh_transfer *t)
{
	if (t->op == WH_WRITE)
		memcpy(s->theirs + t->remote_offset, s->ours + t->local_offset, t->length);
	else
		memcpy(s->ours + t->local_offset, s->theirs + t->remote_offset, t->length);
}

bool batch_uses_window(struct wh_batch *batch)
{
	char text[1024];

	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "cuda: "), "%s", text);
	return strstr(text, "(CPU window (");
}

bool small_move(struct small *s, uint32_t op, uint64_t local, uint64_t remote, uint64_t length)
{
	struct wh_transfer one = small_transfer(s, op, local, remote, length);
	struct wh_batch *batch = small_batch(s, &one, 1);
	bool window;
	int status;

	/* The first time the peer may have to be asked; the same bytes once more go at once. */
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, PATIENCE));
	want(0, wh_batch_submit(batch));
	status = batch_now(batch);
	want(0, batch_end(batch, PATIENCE));
	window = batch_uses_window(batch);
	if (window)
		want(0, status);
	want(0, wh_batch_free(batch));
	small_expect(s, &one);
	return window;
}

void small_same(struct small *s, const char *what)
{
	bytes_get(s->seen, s->p.local, AREA, s->p.here);
	want_true(!memcmp(s->seen, s->ours, AREA), "%s: our side is wrong", what);
	child_fetch(s->p.child, s->p.memory, 0, AREA, s->seen);
	want_true(!memcmp(s->seen, s->theirs, AREA), "%s: the other side is wrong", what);
}

void small_explain(struct small *s)
{
	struct wh_transfer one = small_transfer(s, WH_WRITE, 0, 0, 8);
	struct wh_batch *batch = small_batch(s, &one, 1);
	char text[1024] = "";

	wh_batch_explain(batch, text, sizeof(text));
	print_message("%s", text);
	want(0, wh_batch_free(batch));
}

void small_want_explained(struct small *s, const char *text)
{
	struct wh_transfer one = small_transfer(s, WH_WRITE, 0, 0, 8);
	struct wh_batch *batch = small_batch(s, &one, 1);
	char explained[1024] = "";

	want_true(wh_batch_explain(batch, explained, sizeof(explained)) > 0, "no explanation");
	want_true(strstr(explained, text), "no \"%s\" in \"%s\"", text, explained);
	want(0, wh_batch_free(batch));
}
