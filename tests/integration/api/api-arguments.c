/* SPDX-License-Identifier: Apache-2.0 */
/* api-arguments.c: every misuse of the functions of engines, peers and memory returns an errno,
 * with a text that names the argument (batches: api-transfers.c) */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "lib/fixture.h"

#define LENGTH (64 * KIB)

/* A string of `n` characters. */
static const char *text_of(size_t n)
{
	static char text[256];

	memset(text, 'n', n);
	text[n] = '\0';
	return text;
}

/* ---- engine ------------------------------------------------------------ */

static void engine__options(void **state)
{
	struct {
		struct wh_engine_options options;
		uint64_t tail;
	} grown = { .options = { .size = sizeof(grown) } };
	struct wh_engine_options o = { .size = sizeof(o) };
	struct wh_engine *engine = NULL;

	(void)state;
	want_text(-EINVAL, "out", wh_engine_open(NULL, NULL));
	o.size = 0;
	want_text(-EINVAL, "size", wh_engine_open(&o, &engine));
	o.size = 3;
	want_text(-EINVAL, "size", wh_engine_open(&o, &engine));
	o.size = sizeof(o);
	o.name = text_of(64);
	want_text(-EINVAL, "name", wh_engine_open(&o, &engine));
	o = (struct wh_engine_options){ .size = sizeof(o), .log_level = WH_LOG_DEBUG + 1 };
	want_text(-EINVAL, "log_level", wh_engine_open(&o, &engine));
	o = (struct wh_engine_options){ .size = sizeof(o), .flags = 2 };
	want_text(-EINVAL, "flags", wh_engine_open(&o, &engine));
	o.flags = 0;
	grown.tail = 1;
	want_text(-E2BIG, "field", wh_engine_open(&grown.options, &engine));
	assert_null(engine);
	grown.tail = 0;
	want(0, wh_engine_open(&grown.options, &engine));
	want(0, wh_engine_close(engine));
	o.name = text_of(63);
	want(0, wh_engine_open(&o, &engine));
	assert_string_equal(wh_engine_name(engine), text_of(63));
	want_true(wh_engine_epoch(engine) != 0, "the epoch is 0");
	want(0, wh_engine_close(engine));
}

struct logged {
	unsigned lines;
	char last[512];
};

static void log_warning(void *arg, const struct wh_log_record *record)
{
	struct logged *logged = arg;

	if (record->level != WH_LOG_WARN || strncmp(record->text, "WHERRY_", 7) != 0)
		return;
	logged->lines++;
	snprintf(logged->last, sizeof(logged->last), "%s", record->text);
}

/* An unknown WHERRY_ variable, for example a misspelt one, is logged once per engine, not
 * refused. */
static void engine__unknown_variables(void **state)
{
	struct logged logged = { 0 };
	struct wh_engine_options o = { .size = sizeof(o), .log = log_warning, .log_arg = &logged };
	struct wh_engine *engine;

	(void)state;
	want(0, setenv("WHERRY_TSL", "sesame", 1));
	want(0, wh_engine_open(&o, &engine));
	want(0, wh_engine_close(engine));
	want_true(logged.lines == 1 && strstr(logged.last, "WHERRY_TSL") &&
			  !strstr(logged.last, "sesame"),
		  "%u lines, the last: %s", logged.lines, logged.last);
	want(0, setenv("WHERRY_IGNORE_UNKNOWN", "1", 1));
	want(0, wh_engine_open(&o, &engine));
	want(0, wh_engine_close(engine));
	want_true(logged.lines == 1, "%u lines, though they are to be ignored", logged.lines);
	want(0, setenv("WHERRY_IGNORE_UNKNOWN", "perhaps", 1));
	want_text(-EINVAL, "WHERRY_IGNORE_UNKNOWN=perhaps", wh_engine_open(&o, &engine));
	unsetenv("WHERRY_IGNORE_UNKNOWN");
	unsetenv("WHERRY_TSL");
}

static void engine__listen(void **state)
{
	static const char *const wrong[] = {
		"",       "nonsense",        "127.0.0.1",    "127.0.0.1:",
		":",      "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:12x",
		"[::1:0", "::1]:0"
	};
	static const char *const key[] = { SHARED_KEY, NULL };
	struct wh_engine_options o = { .size = sizeof(o) };
	struct wh_engine *first, *engine;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		o.listen = wrong[i];
		want_text(-EINVAL, *wrong[i] ? wrong[i] : "listen", wh_engine_open(&o, &engine));
	}
	want(0, wh_engine_open(NULL, &first));
	want_true(strncmp(wh_engine_url(first), "wherry://127.0.0.1:", 19) == 0,
		  "by default it listens on %s", wh_engine_url(first));
	o.listen = wh_engine_url(first) + strlen("wherry://");
	want_text(-EADDRINUSE, o.listen, wh_engine_open(&o, &engine));
	o.listen = "192.0.2.1:0"; /* an address for documentation: nobody has it */
	want_text(-EACCES, "192.0.2.1", wh_engine_open(&o, &engine));
	o.config = key;
	want_text(-EADDRNOTAVAIL, "192.0.2.1", wh_engine_open(&o, &engine));
	o.config = NULL;
	want(0, wh_engine_close(first));
	o.listen = "none";
	want(0, wh_engine_open(&o, &engine));
	assert_string_equal(wh_engine_url(engine), "");
	want(0, wh_engine_close(engine));
}

static void engine__config(void **state)
{
	static const struct {
		const char *setting, *word;
	} wrong[] = {
		{ "colour=blue", "colour" },
		{ "connections", "connections" },
		{ "connections=", "connections" },
		{ "connections=0", "connections" },
		{ "connections=-1", "connections" },
		{ "connections=99999999999999999999", "connections" },
		{ "connections=4x", "connections" },
		{ "timeout=soon", "timeout" },
		{ "timeout=0", "timeout" },
		{ "slice=1", "slice" },
		{ "spin=maybe", "spin" },
		{ "require=pigeon", "pigeon" },
		{ "transports=shm,pigeon", "pigeon" },
		{ "transports=", "transports" },
		{ "", "" },
		{ "=", "" },
	};
	struct wh_engine *engine;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		const char *const config[] = { wrong[i].setting, NULL };
		struct wh_engine_options o = { .size = sizeof(o), .config = config };

		want_text(-EINVAL, wrong[i].word, wh_engine_open(&o, &engine));
	}
	for (size_t i = 0; wh_config_row(i); i++) {
		const struct wh_config_row *row = wh_config_row(i);

		want_true(row->name && row->environment && row->fallback && row->type && row->help,
			  "row %d is not complete", (int)i);
		want_true(strncmp(row->environment, "WHERRY_", 7) == 0, "it is %s",
			  row->environment);
	}
	assert_null(wh_config_row(SIZE_MAX));
}

/* The caller's settings take precedence over the environment; an invalid variable is named. */
static void engine__environment(void **state)
{
	static const char *const config[] = { "timeout=100", NULL };
	struct wh_engine_options o = { .size = sizeof(o), .config = config };
	char *usual = strdup(getenv("WHERRY_TIMEOUT"));
	struct wh_engine *engine;

	(void)state;
	assert_non_null(usual);
	setenv("WHERRY_TIMEOUT", "never", 1);
	want_text(-EINVAL, "WHERRY_TIMEOUT", wh_engine_open(NULL, &engine));
	want(0, wh_engine_open(&o, &engine));
	want(0, wh_engine_close(engine));
	setenv("WHERRY_TIMEOUT", "250ms", 1);
	want(0, wh_engine_open(NULL, &engine));
	want(0, wh_engine_close(engine));
	setenv("WHERRY_TIMEOUT", usual, 1);
	free(usual);
}

static void engine__close_while_busy(void **state)
{
	struct wh_engine *engine;
	struct wh_region *region;
	struct wh_queue *queue;
	struct wh_batch *batch;
	struct wh_peer *peer;
	void *memory;

	(void)state;
	want(0, wh_engine_close(NULL));
	want(0, wh_engine_open(NULL, &engine));
	want(0, wh_memory_alloc(engine, LENGTH, NULL, &memory));
	want_text(-EBUSY, "1 allocation", wh_engine_close(engine));
	want(0, wh_region_register(engine, memory, LENGTH, NULL, &region));
	want(-EBUSY, wh_engine_close(engine));
	want_text(-EBUSY, "region", wh_memory_free(engine, memory));
	want(0, wh_peer_open(engine, "self", NULL, &peer));
	want(-EBUSY, wh_engine_close(engine));
	want(0, wh_queue_new(engine, &queue));
	want(0, wh_batch_new(peer,
			     &(struct wh_batch_options){ .size = sizeof(struct wh_batch_options),
							 .queue = queue },
			     &batch));
	want(-EBUSY, wh_engine_close(engine));
	want_text(-EBUSY, "batch", wh_peer_close(peer));
	want_text(-EBUSY, "batch", wh_queue_free(queue));
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(-EBUSY, wh_engine_close(engine));
	want(0, wh_queue_free(queue));
	want_text(-EBUSY, "region", wh_engine_close(engine));
	want(0, wh_region_unregister(region));
	want(0, wh_memory_free(engine, memory));
	want(0, wh_engine_close(engine));
}

/* ---- peers ------------------------------------------------------------- */

static void peer__arguments(void **state)
{
	static const char *const wrong[] = { "",
					     "wherry://",
					     "wherry:/127.0.0.1:1",
					     "127.0.0.1",
					     "wherry://127.0.0.1",
					     "http://127.0.0.1:80",
					     "127.0.0.1:65536",
					     "127.0.0.1:",
					     "127.0.0.1:1x",
					     ":1",
					     "[::1",
					     "[::1]",
					     "[::1]1",
					     "wherry://127.0.0.1:1/path" };
	struct {
		struct wh_peer_options options;
		uint64_t tail;
	} grown = { .options = { .size = sizeof(grown) }, .tail = 1 };
	struct wh_peer_options o = { .size = 1 };
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct wh_peer *peer = NULL;
	char dead[96];

	(void)state;
	want_text(-EINVAL, "engine", wh_peer_open(NULL, "self", NULL, &peer));
	want_text(-EINVAL, "url", wh_peer_open(engine, NULL, NULL, &peer));
	want_text(-EINVAL, "out", wh_peer_open(engine, "self", NULL, NULL));
	want_text(-EINVAL, "size", wh_peer_open(engine, "self", &o, &peer));
	want_text(-E2BIG, "field", wh_peer_open(engine, "self", &grown.options, &peer));
	o = (struct wh_peer_options){ .size = sizeof(o), .timeout = -1 };
	want_text(-EINVAL, "timeout", wh_peer_open(engine, "self", &o, &peer));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		want(-EINVAL, wh_peer_open(engine, wrong[i], NULL, &peer));
		want_true(strstr(wh_error_text(), wrong[i]), "\"%s\": the text says: %s", wrong[i],
			  wh_error_text());
	}
	assert_null(peer);
	/* A port on which nobody listens any more. */
	{
		struct wh_engine *gone = engine_open(NULL, NULL, NULL);

		snprintf(dead, sizeof(dead), "%s", wh_engine_url(gone));
		want(0, wh_engine_close(gone));
	}
	want_text(-ECONNREFUSED, strrchr(dead, ':'), wh_peer_open(engine, dead, NULL, &peer));
	want(0, wh_peer_close(NULL));
	want(0, wh_engine_close(engine));
}

static void peer__info(void **state)
{
	struct {
		struct wh_peer_info info;
		uint64_t tail;
	} grown = { .info = { .size = sizeof(grown) }, .tail = 1 };
	struct wh_peer_info info = { .size = sizeof(info) };
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want_text(-EINVAL, "peer", wh_peer_info(NULL, &info));
	want_text(-EINVAL, "info", wh_peer_info(f.peer, NULL));
	info.size = 4;
	want_text(-EINVAL, "size", wh_peer_info(f.peer, &info));
	want(-E2BIG, wh_peer_info(f.peer, &grown.info));
	info.size = sizeof(info);
	want(0, wh_peer_info(f.peer, &info));
	want(WH_PEER_CONNECTED, info.state);
	if (f.child) {
		want(f.child->epoch, info.epoch);
		want(1, info.regions);
		assert_string_equal(info.name, f.child->name);
		assert_string_equal(info.address, f.child->url + strlen("wherry://"));
	} else {
		want(wh_engine_epoch(f.engine), info.epoch);
		assert_string_equal(info.address, "self");
	}
	fixture_close(&f);
}

static void peer__regions(void **state)
{
	struct wh_remote remote;
	uint64_t cursor = 0, offset;
	size_t count = 1;
	char key[WH_KEY_MAX];
	size_t length = sizeof(key);
	struct wh_region_options open = { .size = sizeof(open), .access = ACCESS_BOTH };
	struct wh_region *ours;
	struct fixture f;

	fixture_open(&f, *state, LENGTH);
	want_text(-EINVAL, "peer", wh_peer_find(NULL, "target", WH_ANSWER, &remote));
	want_text(-EINVAL, "name", wh_peer_find(f.peer, NULL, WH_ANSWER, &remote));
	want_text(-EINVAL, "out", wh_peer_find(f.peer, "target", WH_ANSWER, NULL));
	want_text(-EINVAL, "timeout", wh_peer_find(f.peer, "target", -2, &remote));
	want_text(-ENOENT, "nobody", wh_peer_find(f.peer, "nobody", WH_ANSWER, &remote));
	want(-ENOENT, wh_peer_find(f.peer, text_of(200), WH_ANSWER, &remote));
	want_text(-EINVAL, "peer", wh_peer_list(NULL, &cursor, &remote, &count, WH_ANSWER));
	want_text(-EINVAL, "cursor", wh_peer_list(f.peer, NULL, &remote, &count, WH_ANSWER));
	want_text(-EINVAL, "out", wh_peer_list(f.peer, &cursor, NULL, &count, WH_ANSWER));
	want_text(-EINVAL, "count is NULL", wh_peer_list(f.peer, &cursor, &remote, NULL, 1));
	want_text(-EINVAL, "timeout is 0", wh_peer_list(f.peer, &cursor, &remote, &count, 0));
	want_text(-EINVAL, "timeout is neg", wh_peer_list(f.peer, &cursor, &remote, &count, -2));
	count = 0;
	want_text(-EINVAL, "count is 0", wh_peer_list(f.peer, &cursor, &remote, &count, 1));
	count = 1;
	cursor = UINT64_MAX;
	want(0, wh_peer_list(f.peer, &cursor, &remote, &count, WH_ANSWER));
	want(0, count);
	want(0, cursor);
	want_text(-EINVAL, "peer", wh_peer_lookup(NULL, 1, 1, WH_ANSWER, &remote, &offset));
	want_text(-EINVAL, "out", wh_peer_lookup(f.peer, 1, 1, WH_ANSWER, NULL, &offset));
	want_text(-EINVAL, "offset", wh_peer_lookup(f.peer, 1, 1, WH_ANSWER, &remote, NULL));
	want(0, wh_region_register(f.engine, f.local, LENGTH, &open, &ours));
	want(0, wh_region_pack_key(ours, key, &length));
	want(0, wh_region_unregister(ours));
	want_text(-EINVAL, "peer", wh_peer_unpack_key(NULL, key, length, WH_ANSWER, &remote));
	want_text(-EINVAL, "key", wh_peer_unpack_key(f.peer, NULL, length, WH_ANSWER, &remote));
	want_text(-EINVAL, "out", wh_peer_unpack_key(f.peer, key, length, WH_ANSWER, NULL));
	want_text(-EINVAL, "timeout", wh_peer_unpack_key(f.peer, key, length, -2, &remote));
	fixture_close(&f);
}

/* ---- queues and notifications ------------------------------------------ */

static void queue__arguments(void **state)
{
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct wh_notification raw = { .size = sizeof(raw) };
	struct note *note = malloc(sizeof(*note));
	struct wh_completion done;
	struct wh_queue *queue;

	(void)state;
	want_text(-EINVAL, "engine", wh_queue_new(NULL, &queue));
	want_text(-EINVAL, "out", wh_queue_new(engine, NULL));
	want(0, wh_queue_new(engine, &queue));
	want_text(-EINVAL, "queue", wh_queue_take(NULL, &done, 1, 0));
	want_text(-EINVAL, "out", wh_queue_take(queue, NULL, 1, 0));
	want_text(-EINVAL, "max", wh_queue_take(queue, &done, 0, 0));
	want_text(-EINVAL, "timeout", wh_queue_take(queue, &done, 1, -1));
	want(0, wh_queue_free(NULL));
	want(0, wh_queue_free(queue));
	want_text(-EINVAL, "engine", wh_engine_notification(NULL, NULL, &raw, 0));
	want_text(-EINVAL, "out", wh_engine_notification(engine, NULL, NULL, 0));
	want_text(-EINVAL, "timeout", note_take(engine, note, -1));
	want(-EAGAIN, note_take(engine, note, 0));
	want(0, wh_engine_close(engine));
	free(note);
}

/* ---- memory ------------------------------------------------------------ */

static void memory__arguments(void **state)
{
	struct {
		struct wh_memory_options options;
		uint64_t tail;
	} grown = { .options = { .size = sizeof(grown) }, .tail = 1 };
	struct wh_memory_options o = { .size = sizeof(o), .kind = 77 };
	struct wh_memory_info info = { .size = 1 };
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	void *memory = NULL;

	(void)state;
	want_text(-EINVAL, "engine", wh_memory_alloc(NULL, 4096, NULL, &memory));
	want_text(-EINVAL, "length", wh_memory_alloc(engine, 0, NULL, &memory));
	want_text(-EINVAL, "out", wh_memory_alloc(engine, 4096, NULL, NULL));
	want_text(-EINVAL, "kind", wh_memory_alloc(engine, 4096, &o, &memory));
	o.size = 0;
	want_text(-EINVAL, "size", wh_memory_alloc(engine, 4096, &o, &memory));
	want_text(-E2BIG, "field", wh_memory_alloc(engine, 4096, &grown.options, &memory));
	want(-ENOMEM, wh_memory_alloc(engine, SIZE_MAX, NULL, &memory));
	want(-ENOMEM, wh_memory_alloc(engine, SIZE_MAX / 2, NULL, &memory));
	for (uint32_t kind = WH_MEMORY_PAGEABLE; kind <= WH_MEMORY_SHARED; kind++) {
		o = (struct wh_memory_options){ .size = sizeof(o), .kind = kind };
		want(-ENOMEM, wh_memory_alloc(engine, SIZE_MAX - 4096, &o, &memory));
	}
	assert_null(memory);
	want(0, wh_memory_alloc(engine, 5000, NULL, &memory));
	for (size_t i = 0; i < 5000; i++)
		want_true(((char *)memory)[i] == 0, "byte %zu is not zero", i);
	want_text(-EINVAL, "engine", wh_memory_free(NULL, memory));
	want(0, wh_memory_free(engine, NULL));
	want_text(-EINVAL, "allocation", wh_memory_free(engine, (char *)memory + 1));
	want_text(-EINVAL, "not allocated", wh_memory_free(engine, &o));
	want_text(-EINVAL, "engine", wh_memory_query(NULL, memory, &info));
	want_text(-EINVAL, "info", wh_memory_query(engine, memory, NULL));
	want_text(-EINVAL, "size", wh_memory_query(engine, memory, &info));
	info.size = sizeof(info);
	want(0, wh_memory_query(engine, (char *)memory + 4999, &info));
	want(WH_MEMORY_SHARED, info.kind);
	want_true(info.base == memory && info.length >= 5000, "%llu bytes",
		  (unsigned long long)info.length);
	want(0, wh_memory_query(engine, &o, &info));
	want(WH_MEMORY_PAGEABLE, info.kind);
	want(0, info.length);
	want_true(info.base == &o, "another base");
	want(0, wh_memory_free(engine, memory));
	want(-EINVAL, wh_memory_free(engine, memory));
	want(0, wh_engine_close(engine));
}

static void region__arguments(void **state)
{
	struct {
		struct wh_region_options options;
		uint64_t tail;
	} grown = { .options = { .size = sizeof(grown) }, .tail = 1 };
	static const char *const names[] = { "with space", "a/b", "umläut", "new\nline", "a:b" };
	struct wh_region_options o = { .size = sizeof(o) };
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct wh_region *region = NULL, *other;
	static char memory[4096];
	char key[WH_KEY_MAX];
	size_t length = sizeof(key);
	uint64_t offset;

	(void)state;
	want_text(-EINVAL, "engine", wh_region_register(NULL, memory, 1, NULL, &region));
	want_text(-EINVAL, "address", wh_region_register(engine, NULL, 1, NULL, &region));
	want_text(-EINVAL, "length", wh_region_register(engine, memory, 0, NULL, &region));
	want_text(-EINVAL, "out", wh_region_register(engine, memory, 1, NULL, NULL));
	want_text(-EINVAL, "address space",
		  wh_region_register(engine, memory, SIZE_MAX, NULL, &region));
	want_text(-EINVAL, "address space",
		  wh_region_register(engine, memory, SIZE_MAX - (uintptr_t)memory + 2, NULL,
				     &region));
	want_text(-E2BIG, "field", wh_region_register(engine, memory, 1, &grown.options, &region));
	o.size = 2;
	want_text(-EINVAL, "size", wh_region_register(engine, memory, 1, &o, &region));
	o.size = sizeof(o);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		o.name = names[i];
		want_text(-EINVAL, "name", wh_region_register(engine, memory, 1, &o, &region));
	}
	o.name = text_of(64);
	want_text(-EINVAL, "name", wh_region_register(engine, memory, 1, &o, &region));
	o.name = "twice";
	o.access = 16;
	want_text(-EINVAL, "access", wh_region_register(engine, memory, 1, &o, &region));
	o.access = WH_ACCESS_READ | 8;
	want_text(-EINVAL, "access", wh_region_register(engine, memory, 1, &o, &region));
	assert_null(region);
	o.access = ACCESS_BOTH;
	want(0, wh_region_register(engine, memory, 1, &o, &region));
	want_text(-EEXIST, "twice", wh_region_register(engine, memory + 5, 1, &o, &other));
	want(0, wh_region_unregister(NULL));
	want_text(-EINVAL, "engine", wh_region_lookup(NULL, memory, 1, &other, &offset));
	want_text(-EINVAL, "out", wh_region_lookup(engine, memory, 1, NULL, &offset));
	want_text(-EINVAL, "offset", wh_region_lookup(engine, memory, 1, &other, NULL));
	want(-ENOENT, wh_region_lookup(engine, memory, 2, &other, &offset));
	want_text(-EINVAL, "region", wh_region_pack_key(NULL, key, &length));
	want_text(-EINVAL, "buffer", wh_region_pack_key(region, NULL, &length));
	want_text(-EINVAL, "length", wh_region_pack_key(region, key, NULL));
	length = 0;
	want(-ENOSPC, wh_region_pack_key(region, key, &length));
	want(0, wh_region_unregister(region));
	/* The name is free again. */
	want(0, wh_region_register(engine, memory + 5, 1, &o, &region));
	want(0, wh_region_unregister(region));
	want(0, wh_engine_close(engine));
}

/* ---- errors ------------------------------------------------------------ */

static void error__text(void **state)
{
	char version[32];

	(void)state;
	snprintf(version, sizeof(version), "%d.%d.%d", WH_VERSION_MAJOR, WH_VERSION_MINOR,
		 WH_VERSION_PATCH);
	assert_string_equal(wh_version(), version);
	want(-EINVAL, wh_engine_open(NULL, NULL));
	want_true(!strchr(wh_error_text(), '\n'), "it has a line break: %s", wh_error_text());
	want_true(strstr(wh_error_text(), "wh_engine_open"), "it does not name the call: %s",
		  wh_error_text());
	/* A successful call does not change the text. */
	wh_version();
	want_true(strstr(wh_error_text(), "wh_engine_open"), "it has changed: %s", wh_error_text());
}

/* Without a function, the setting `log` alone decides whether stderr gets lines. */
static void engine__log_setting(void **state)
{
	static const char *const levels[] = { NULL, "log=warn", "log=debug" };
	const char *config[] = { "log=loud", NULL };
	struct wh_engine_options o = { .size = sizeof(o), .config = config };
	struct wh_engine *engine;
	char text[1024];

	(void)state;
	want_text(-EINVAL, "log=loud", wh_engine_open(&o, &engine));
	want(0, setenv("WHERRY_TSL", "sesame", 1));
	for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++) {
		int ends[2], saved = dup(STDERR_FILENO);
		ssize_t length;

		config[0] = levels[i];
		want(0, pipe2(ends, O_NONBLOCK | O_CLOEXEC));
		dup2(ends[1], STDERR_FILENO);
		want(0, wh_engine_open(&o, &engine));
		want(0, wh_engine_close(engine));
		dup2(saved, STDERR_FILENO);
		close(saved);
		close(ends[1]);
		length = read(ends[0], text, sizeof(text) - 1);
		close(ends[0]);
		text[length < 0 ? 0 : length] = '\0';
		want_true(!strstr(text, "wherry: warning: engine: WHERRY_TSL") == !levels[i],
			  "with %s: %s", levels[i] ? levels[i] : "nothing", text);
	}
	unsetenv("WHERRY_TSL");
}

static const struct CMUnitTest tests[] = {
	TEST(engine__log_setting),
	TEST(engine__options),
	TEST(engine__unknown_variables),
	TEST(engine__listen),
	TEST(engine__config),
	TEST(engine__environment),
	TEST(engine__close_while_busy),
	TEST(peer__arguments),
	TEST_OVER(peer__info, tcp4),
	TEST_OVER(peer__info, self),
	TEST_OVER(peer__regions, tcp4),
	TEST(queue__arguments),
	TEST(memory__arguments),
	TEST(region__arguments),
	TEST(error__text),
};

HARNESS_MAIN("api-arguments", tests)
