/* SPDX-License-Identifier: Apache-2.0 */
/* The world: random numbers, the trace and its hash, events, and the scheduler. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "net/tls.h"
#include "world.h"

#define RUN_MOST 40 /* calls, then another thread may run: each host has a CPU of its own */
#define SPIN 300 /* polls in a row that find nothing */
/* Calls of a thread, one after the other, that end in nothing: about 40 ms. A NIC that registers
 * pages only takes 10,000 to forget a bounce buffer. */
#define AWAKE_MOST 60000
#define PAUSE 300000 /* ns, between polls in vain */
#define PAUSES_MOST 1000 /* a callback may take 200 ms, and whoever waits for it polls */

struct sim_options sim_options;
struct sim_counts sim_counts;
uint64_t sim_hash = 14695981039346656037ull;
int64_t sim_time = 1000 * SIM_SEC;
volatile sig_atomic_t sim_out_of_time;

static struct sim_settings settings;

void *sim_grow(void *array, size_t count, size_t size)
{
	void *grown = reallocarray(array, count, size);

	if (!grown)
		sim_die("no memory for %zu times %zu bytes", count, size);
	return grown;
}

void *sim_grow_one(void *array, size_t count, size_t size)
{
	bool is_full = !(count & (count - 1)); /* 0, or a power of two */

	return is_full ? sim_grow(array, count ? 2 * count : 1, size) : array;
}

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t world_state, work_state, chaos_state, secret_state;

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint64_t stream_of(uint64_t seed, uint64_t number)
{
	uint64_t state = seed + number * 0xd1342543de82ef95ull;

	draw(&state);
	return draw(&state);
}

uint64_t sim_draw_world(uint64_t below)
{
	return below ? draw(&world_state) % below : 0;
}

uint64_t sim_draw_work(uint64_t below)
{
	return below ? draw(&work_state) % below : 0;
}

uint64_t sim_draw_chaos(uint64_t below)
{
	return below ? draw(&chaos_state) % below : 0;
}

void sim_draw_secret(void *out, size_t length)
{
	uint8_t *bytes = out;

	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)draw(&secret_state);
}

bool sim_chance(int per_mille)
{
	return per_mille > 0 && (int)sim_draw_world(1000) < per_mille;
}

/* ---- trace, hash ----------------------------------------------------------------------------- */

void hash_word(uint64_t value)
{
	sim_hash = (sim_hash ^ value) * 1099511628211ull;
	sim_hash ^= sim_hash >> 29;
}

void hash_bytes(const void *bytes, size_t length)
{
	const uint8_t *at = bytes;
	uint64_t word;

	for (; length >= sizeof(word); at += sizeof(word), length -= sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		hash_word(word);
	}
	for (; length; at++, length--)
		hash_word(*at);
}

const char *sim_thread_name(void)
{
	return sim_current ? sim_current->name : "world";
}

void sim_trace(const char *format, ...)
{
	va_list arguments;

	if (!settings.trace)
		return;
	printf("%12.6f %-12s ", (double)sim_time / 1e9, sim_thread_name());
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
}

void call_point(const char *call, uint64_t argument)
{
	sim_counts.calls++;
	if (sim_out_of_time)
		sim_fail("livelock", "too much CPU time: %llu calls, %llu switches, %llu events",
			 (unsigned long long)sim_counts.calls,
			 (unsigned long long)sim_counts.switches,
			 (unsigned long long)sim_counts.events);
	if (!sim_current)
		return;
	if (settings.stop_at && sim_time >= settings.stop_at) {
		fprintf(stderr, "in %s:\n", sim_current->name);
		fiber_print_stack();
		sim_dump();
		_exit(3);
	}
	sim_time += 200 + (int64_t)sim_draw_world(800);
	hash_word((uint64_t)sim_current->id << 16 | (uint64_t)(uint8_t)call[0] << 8 |
		  (uint8_t)call[1]);
	hash_word(argument);
	hash_word((uint64_t)sim_time);
	if (++sim_current->awake > AWAKE_MOST)
		sim_fail("busy", "%s has made %d calls and neither slept nor moved a byte",
			 sim_current->name, AWAKE_MOST);
	/* Not within OpenSSL: all threads have one queue of its errors, as they are one for it. */
	if ((sim_chance(sim_options.preempt) || ++sim_current->run_length > RUN_MOST) &&
	    !wh_tls_entered())
		fiber_yield();
}

long call_result(const char *call, int fd, long value)
{
	int error = errno;

	hash_word((uint64_t)value);
	if (settings.trace)
		sim_trace("%s(%d) = %ld %s", call, fd, value,
			  value < 0 ? strerrorname_np(error) : "");
	errno = error;
	return value;
}

long call_failed(const char *call, int fd, int error)
{
	errno = error;
	return call_result(call, fd, -1);
}

long call_done(const char *call, int fd, long value)
{
	return value < 0 ? call_failed(call, fd, (int)-value) : call_result(call, fd, value);
}

static bool never(const struct fiber *fiber)
{
	(void)fiber;
	return false;
}

void sim_worked(void)
{
	sim_current->awake = sim_current->fruitless = 0;
}

void call_fruitless(void)
{
	if (!sim_current || ++sim_current->fruitless < SPIN)
		return;
	if (!sim_current->spun) {
		sim_current->spun = true;
		sim_counts.spins++;
		if (settings.stop_spinning) {
			fprintf(stderr, "%s spins:\n", sim_current->name);
			fiber_print_stack();
			_exit(4);
		}
	}
	if (++sim_current->pauses > PAUSES_MOST)
		sim_fail("busy", "%s polls in vain for %d ms", sim_current->name,
			 PAUSES_MOST * PAUSE / 1000000);
	fiber_block(never, NULL, 0, sim_time + PAUSE, "spinning");
	sim_current->fruitless = SPIN;
}

/* ---- events: a heap by time, then by number -------------------------------------------------- */

struct event {
	int64_t at;
	uint64_t number;
	void (*run)(void *);
	void *arg;
};

static struct event *heap;
static size_t heap_count, heap_room;
static uint64_t event_number;

static bool is_earlier(const struct event *a, const struct event *b)
{
	return a->at < b->at || (a->at == b->at && a->number < b->number);
}

static void heap_swap(size_t a, size_t b)
{
	struct event other = heap[a];

	heap[a] = heap[b];
	heap[b] = other;
}

void event_at(int64_t when, void (*run)(void *), void *arg)
{
	size_t i = heap_count++;

	if (heap_count > heap_room) {
		heap_room = heap_room ? 2 * heap_room : 1024;
		heap = sim_grow(heap, heap_room, sizeof(*heap));
	}
	heap[i] = (struct event){ when, event_number++, run, arg };
	for (; i && is_earlier(&heap[i], &heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap_swap(i, (i - 1) / 2);
}

void sim_after(int64_t ns, void (*run)(void *), void *arg)
{
	event_at(sim_time + ns, run, arg);
}

static struct event event_take(void)
{
	struct event first = heap[0];
	size_t i = 0, child;

	heap[0] = heap[--heap_count];
	while ((child = 2 * i + 1) < heap_count) {
		if (child + 1 < heap_count && is_earlier(&heap[child + 1], &heap[child]))
			child++;
		if (!is_earlier(&heap[child], &heap[i]))
			break;
		heap_swap(i, child);
		i = child;
	}
	return first;
}

/* ---- threads --------------------------------------------------------------------------------- */

static struct fiber **alive; /* those that have not ended, in the order of their start */
static int alive_count, alive_room, last_id;

static struct fiber **ended; /* by id - 1, for those who join them */

int sim_spawn(int node, const char *name, void *(*run)(void *), void *arg)
{
	struct fiber *fiber = calloc(1, sizeof(*fiber));

	if (alive_count == alive_room)
		alive = sim_grow(alive, alive_room += 64, sizeof(struct fiber *));
	ended = sim_grow_one(ended, last_id, sizeof(struct fiber *));
	alive[alive_count++] = ended[last_id++] = fiber;
	fiber->id = last_id;
	fiber->node = node;
	snprintf(fiber->name, sizeof(fiber->name), "%s", name);
	fiber->run = run;
	fiber->arg = arg;
	fiber->deadline = INT64_MAX;
	fiber_prepare(fiber);
	return fiber->id;
}

int fiber_self(void)
{
	return sim_current ? sim_current->id : 1 << 30;
}

struct fiber *fiber_next(int node, const struct fiber *after)
{
	bool found = !after;

	for (int i = 0; i < alive_count; i++) {
		if (found && alive[i]->node == node)
			return alive[i];
		found |= alive[i] == after;
	}
	return NULL;
}

void fiber_rename(int id, const char *name)
{
	if (id >= 1 && id <= last_id)
		snprintf(ended[id - 1]->name, sizeof(ended[0]->name), "%d:%s", ended[id - 1]->node,
			 name);
}

static bool fiber_has_ended(const struct fiber *fiber)
{
	return ended[fiber->value - 1]->done;
}

void *fiber_join(int id)
{
	if (!ended[id - 1]->done)
		fiber_block(fiber_has_ended, NULL, id, INT64_MAX, "join");
	return ended[id - 1]->result;
}

static bool block(bool (*ready)(const struct fiber *), const void *on, int64_t value,
		  int64_t deadline, const char *why, bool polls)
{
	struct fiber *me = sim_current;

	if (!me)
		sim_die("%s outside a thread", why);
	me->ready = ready;
	me->on = on;
	me->value = value;
	me->deadline = deadline;
	me->polls = polls;
	me->blocked = true;
	me->decided = me->timed_out = false;
	me->version = UINT64_MAX;
	me->why = why;
	fiber_leave(me);
	me->blocked = false;
	me->awake = 0;
	me->deadline = INT64_MAX;
	if (ready != never)
		me->fruitless = me->pauses = 0, me->spun = false;
	return !me->timed_out;
}

bool fiber_block(bool (*ready)(const struct fiber *), const void *on, int64_t value,
		 int64_t deadline, const char *why)
{
	return block(ready, on, value, deadline, why, false);
}

bool fiber_poll(bool (*ready)(const struct fiber *), const void *on, int64_t value,
		int64_t deadline, const char *why)
{
	return block(ready, on, value, deadline, why, true);
}

void sim_thread_hold(int node, const char *name, int64_t ns)
{
	size_t length = strlen(name);

	for (int i = 0; i < alive_count; i++) {
		size_t own = strlen(alive[i]->name);

		if (alive[i]->node == node && own >= length &&
		    strcmp(alive[i]->name + own - length, name) == 0)
			alive[i]->late_until = sim_time + ns;
	}
}

void sim_sleep(int64_t ns)
{
	fiber_block(never, NULL, 0, sim_time + ns, "sleep");
}

static bool idles(const struct fiber *fiber)
{
	(void)fiber;
	return false;
}

void sim_idle(int64_t ns)
{
	fiber_block(idles, NULL, 0, sim_time + ns, "idle");
}

void fiber_yield(void)
{
	fiber_leave(sim_current);
}

bool fiber_woken(const struct fiber *fiber)
{
	return fiber->woken;
}

void fiber_wake(const void *on, bool all)
{
	int first = (int)sim_draw_world((uint64_t)alive_count);

	for (int i = 0; i < alive_count; i++) {
		struct fiber *fiber = alive[(first + i) % alive_count];

		if (!fiber->blocked || fiber->ready != fiber_woken || fiber->on != on ||
		    fiber->woken)
			continue;
		fiber->woken = true;
		if (!all)
			return;
	}
}

/* ---- the scheduler --------------------------------------------------------------------------- */

/* Until when a thread cannot run, whatever it waits for. */
static int64_t fiber_held_until(const struct fiber *fiber)
{
	int64_t stalled = fiber->node >= 0 ? node_of(fiber->node)->stalled_until : 0;

	return stalled > fiber->late_until ? stalled : fiber->late_until;
}

static bool fiber_is_ready(struct fiber *fiber)
{
	if (fiber_held_until(fiber) > sim_time)
		return false;
	if (!fiber->blocked)
		return true;
	if (!fiber->polls || fiber->node < 0) {
		if (fiber->ready(fiber))
			return true;
	} else if (fiber->version != node_of(fiber->node)->version) {
		if (fiber->ready(fiber))
			return true;
		fiber->version = node_of(fiber->node)->version;
	}
	fiber->timed_out = fiber->deadline <= sim_time;
	return fiber->timed_out;
}

static bool fiber_may_run(struct fiber *fiber)
{
	if (!fiber_is_ready(fiber))
		return false;
	/* Woken, but its CPU does other things for a while. */
	if (fiber->blocked && !fiber->decided) {
		fiber->decided = true;
		if (fiber->node >= 0 && sim_chance(sim_options.late)) {
			fiber->late_until = sim_time + 1 + (int64_t)sim_draw_world(10 * SIM_MS);
			fiber->timed_out = false;
			fiber->version = UINT64_MAX;
			return false;
		}
	}
	return true;
}

static void scheduler_run(struct fiber *fiber)
{
	int at = 0;

	sim_counts.switches++;
	fiber->run_length = 0;
	fiber_enter(fiber);
	if (!fiber->done)
		return;
	fiber_end(fiber);
	while (alive[at] != fiber)
		at++;
	memmove(alive + at, alive + at + 1, (size_t)(--alive_count - at) * sizeof(*alive));
}

/* When the next thing happens that nobody's running brings about. */
static int64_t scheduler_next(void)
{
	int64_t next = heap_count ? heap[0].at : INT64_MAX;

	for (int i = 0; i < alive_count; i++) {
		int64_t held = fiber_held_until(alive[i]);
		int64_t when = held > sim_time ? held : alive[i]->deadline;

		next = when < next ? when : next;
	}
	return next;
}

bool sim_run(int64_t until)
{
	static struct fiber *ready[4096];

	while (alive_count) {
		int count = 0;
		int64_t next;

		while (heap_count && heap[0].at <= sim_time) {
			struct event event = event_take();

			sim_counts.events++;
			event.run(event.arg);
		}
		for (int i = 0; i < alive_count; i++)
			if (fiber_may_run(alive[i]))
				ready[count++] = alive[i];
		if (count) {
			scheduler_run(ready[count > 1 ? sim_draw_world((uint64_t)count) : 0]);
			continue;
		}
		next = scheduler_next();
		if (next == INT64_MAX || next > until)
			return false;
		sim_time = next > sim_time ? next : sim_time;
	}
	return true;
}

void sim_dump(void)
{
	fprintf(stderr, "at %.6f:\n", (double)sim_time / 1e9);
	for (int i = 0; i < alive_count; i++) {
		const struct fiber *fiber = alive[i];

		fprintf(stderr, "  thread %d %s of node %d %s%s", fiber->id, fiber->name,
			fiber->node, fiber->blocked ? "in " : "runs",
			fiber->blocked ? fiber->why : "");
		if (fiber->deadline != INT64_MAX)
			fprintf(stderr, " until %.6f", (double)fiber->deadline / 1e9);
		fprintf(stderr, "%s\n", fiber == sim_current ? " (current)" : "");
	}
}

void sim_begin(const struct sim_settings *given)
{
	settings = *given;
	world_state = stream_of(settings.seed, 1);
	work_state = stream_of(settings.seed, 2);
	chaos_state = stream_of(settings.seed, 3);
	secret_state = stream_of(settings.seed, 4);
	fiber_setup();
}
