/* SPDX-License-Identifier: Apache-2.0 */
/* child.c: a child process: opens an engine and executes the commands that arrive over a socket */
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "driven.h"
#include "files.h"
#include "harness.h"
#include "yama.h"

#define MEMORIES 64
#define PEERS 64
#define BATCHES 64
#define LIFE 115 /* seconds until the alarm */

struct memory {
	unsigned char *base;
	size_t length;
	uint32_t kind;
	int fd; /* CHILD_FILE */
};

static struct wh_engine *engine;
static struct memory memories[MEMORIES];
static struct wh_region **regions;
static size_t region_count, region_room;
static struct wh_peer *peers[PEERS];
static struct wh_batch *running[BATCHES];
static unsigned char *fetched; /* the copy of GPU bytes that CHILD_FETCH sends */

static void log_line(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	fprintf(stderr, "child %d: %s\n", (int)getpid(), record->text);
}

static int become_user(uint32_t user)
{
	if (setgroups(0, NULL) != 0 || setresgid(user, user, user) != 0 ||
	    setresuid(user, user, user) != 0)
		return -errno;
	/* The change of user made the process undumpable, which closes even its own /proc to it. */
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return 0;
}

static int engine_start(const struct child_command *command, struct child_answer *answer)
{
	const char *config[7] = { NULL };
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = command->other[0] ? command->other : NULL,
		.listen = command->text[0] ? command->text : NULL,
		.config = config,
		.log = getenv("TESTS_LOG") ? log_line : NULL,
		.flags = driven_flags("target"),
	};
	size_t n = 0;
	int error = 0;

	if (command->yama)
		error = yama_scope() ? prctl(PR_SET_PTRACER, 0) : yama_pretend();
	if (!error && command->user)
		error = become_user(command->user);
	for (size_t i = 0; i < 6; i++)
		if (command->config[i][0])
			config[n++] = command->config[i];
	if (!error)
		error = wh_engine_open(&options, &engine);
	if (error)
		return error;
	driven_set(engine);
	snprintf(answer->url, sizeof(answer->url), "%s", wh_engine_url(engine));
	snprintf(answer->name, sizeof(answer->name), "%s", wh_engine_name(engine));
	answer->value = wh_engine_epoch(engine);
	return 0;
}

static int memory_allocate(const struct child_command *command, struct child_answer *answer)
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = command->kind,
					     .location = command->text[0] ? command->text : NULL };
	int i = 0, error = 0, fd = -1;
	void *base;

	while (i < MEMORIES && memories[i].base)
		i++;
	if (i == MEMORIES)
		return -ENOSPC;
	if (command->kind == CHILD_FOREIGN) {
		base = mmap(NULL, command->length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		error = base == MAP_FAILED ? -errno : 0;
	} else if (command->kind == CHILD_FILE) {
		fd = file_new(command->length);
		base = fd < 0 ? NULL : file_map(fd, command->length);
		error = fd < 0 ? fd : base ? 0 : -errno;
		if (error && fd >= 0)
			close(fd);
	} else if (command->kind == CHILD_SEGMENTED || command->kind == CHILD_FABRIC) {
		base = bytes_segmented(*command->text ? atoi(command->text + strlen("cuda:")) : 0,
				       command->length, command->kind == CHILD_FABRIC);
		error = base ? 0 : -ENOMEM;
	} else {
		error = wh_memory_alloc(engine, command->length, &options, &base);
	}
	if (error)
		return error;
	memories[i] = (struct memory){ base, command->length, command->kind, fd };
	answer->value = (uint64_t)i;
	return 0;
}

static int memory_release(struct memory *memory)
{
	int error = 0;

	if (memory->kind == CHILD_FOREIGN || memory->kind == CHILD_FILE)
		munmap(memory->base, memory->length);
	if (memory->kind == CHILD_FILE)
		close(memory->fd);
	else if (memory->kind != CHILD_FOREIGN && memory->kind != CHILD_SEGMENTED &&
		 memory->kind != CHILD_FABRIC)
		error = wh_memory_free(engine, memory->base);
	if (!error)
		memory->base = NULL;
	return error;
}

static int add_region(const struct child_command *command, uint64_t offset, uint64_t length,
		      const char *name, uint64_t *id)
{
	struct wh_region_options options = { .size = sizeof(options),
					     .name = name,
					     .access = command->access };
	const struct memory *memory;
	struct wh_region *region;
	int error;

	if (region_count == region_room) {
		size_t room = region_room ? 2 * region_room : 64;
		void *more = realloc(regions, room * sizeof(*regions));

		if (!more)
			return -ENOMEM;
		regions = more;
		region_room = room;
	}
	memory = &memories[command->index];
	error = memory->kind == CHILD_FILE ?
			file_region(engine, memory->fd, offset, length, &options, &region) :
			wh_region_register(engine, memory->base + offset, length, &options,
					   &region);
	if (error)
		return error;
	regions[region_count] = region;
	*id = wh_region_id(region);
	return (int)region_count++;
}

static int add_regions(const struct child_command *command, struct child_answer *answer)
{
	for (uint64_t i = 0; i < command->count; i++) {
		bool last = i + 1 == command->count && command->text[0];
		int error = add_region(command, i * command->length, command->length,
				       last ? command->text : NULL, &answer->value);

		if (error < 0)
			return error;
	}
	return 0;
}

static int region_unregister(int index)
{
	/* NULL would be no error. */
	int error = regions[index] ? wh_region_unregister(regions[index]) : -EINVAL;

	if (!error)
		regions[index] = NULL;
	return error;
}

static int open_peer(const struct child_command *command)
{
	int i = 0, error;

	while (i < PEERS && peers[i])
		i++;
	if (i == PEERS)
		return -ENOSPC;
	error = wh_peer_open(engine, command->text, NULL, &peers[i]);
	return error ? error : i;
}

static void report_routes(struct wh_batch *batch, struct child_answer *answer)
{
	struct wh_route routes[8];
	size_t count = 8;

	if (wh_batch_explain(batch, answer->explain, sizeof(answer->explain)) < 0 ||
	    wh_batch_routes(batch, routes, &count) != 0)
		return;
	for (size_t i = count; i > 0; i--)
		if (routes[i - 1].bytes)
			memcpy(answer->transport, routes[i - 1].transport,
			       sizeof(answer->transport));
}

static int fill_batch(const struct child_command *command, struct wh_batch *batch)
{
	struct wh_remote remote;
	struct wh_transfer *transfers;
	int64_t end = now() + PATIENCE;
	int error = 0;

	if (command->length && (size_t)command->index >= region_count)
		return -EINVAL;
	if (command->length) {
		/* The region may still be announced. A peer that is lost, or about to be, ends the
		 * wait. */
		while ((error = wh_peer_find(peers[command->peer], command->text, WH_ANSWER,
					     &remote)) == -ENOENT &&
		       now() < end)
			sleep_ms(1);
		transfers = calloc(command->count, sizeof(*transfers));
		for (uint64_t i = 0; !error && i < command->count; i++)
			transfers[i] = (struct wh_transfer){
				.local = regions[command->index],
				.local_offset = command->offset,
				.remote = remote.id,
				.remote_offset = command->remote_offset,
				.length = command->length,
				.op = command->direction,
			};
		if (!error)
			error = wh_batch_add(batch, transfers, command->count);
		free(transfers);
	}
	if (!error && command->other[0])
		error = wh_batch_notify(batch, 0, command->other, strlen(command->other));
	return error;
}

static int run_transfer(const struct child_command *command, struct child_answer *answer)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .require =
						    command->require[0] ? command->require : NULL };
	struct wh_batch *batch = NULL;
	int error = wh_batch_new(peers[command->peer], &options, &batch);

	if (!error)
		error = fill_batch(command, batch);
	if (!error)
		error = wh_batch_submit(batch);
	if (error) {
		snprintf(answer->text, sizeof(answer->text), "%s", wh_error_text());
		wh_batch_free(batch);
		return error;
	}
	if (command->go) {
		for (int i = 0; i < BATCHES; i++)
			if (!running[i]) {
				running[i] = batch;
				return 0;
			}
		return -ENOSPC;
	}
	error = batch_end(batch, 2 * PATIENCE);
	snprintf(answer->text, sizeof(answer->text), "%s", wh_batch_error_text(batch));
	report_routes(batch, answer);
	if (error == -EAGAIN)
		wh_batch_cancel(batch);
	wh_batch_free(batch);
	return error;
}

/* Close everything. Returns the first error. */
static int engine_leave(void)
{
	int error = 0;

	for (int i = 0; i < BATCHES; i++)
		if (running[i]) {
			wh_batch_cancel(running[i]);
			error = error ? error : wh_batch_free(running[i]);
		}
	for (int i = 0; i < PEERS; i++)
		if (peers[i])
			error = error ? error : wh_peer_close(peers[i]);
	for (size_t i = 0; i < region_count; i++)
		if (regions[i])
			error = error ? error : region_unregister((int)i);
	for (int i = 0; i < MEMORIES; i++)
		if (memories[i].base)
			error = error ? error : memory_release(&memories[i]);
	free(regions);
	return error ? error : wh_engine_close(engine);
}

static int access_bytes(const struct child_command *command, struct child_answer *answer)
{
	const struct memory *memory = &memories[command->index];
	unsigned char *at = memory->base + command->offset, *copy = NULL;

	if (command->offset + command->length > memories[command->index].length)
		return -ERANGE;
	if (bytes_on_gpu(memory->kind)) {
		copy = malloc(command->length);
		if (!copy)
			return -ENOMEM;
		bytes_get(copy, at, command->length, memory->kind);
		at = copy;
	}
	hidden_begin();
	if (command->op == CHILD_FILL)
		pattern_fill(at, command->length, command->position, command->seed);
	else if (command->op == CHILD_CHECK)
		answer->value =
			pattern_check(at, command->length, command->position, command->seed);
	else if (command->op == CHILD_SUM)
		answer->value = pattern_sum(at, command->length);
	else
		answer->length = command->length;
	hidden_end();
	if (copy && command->op == CHILD_FILL)
		bytes_put(memory->base + command->offset, copy, command->length, memory->kind);
	if (command->op == CHILD_FETCH)
		fetched = copy;
	else
		free(copy);
	return 0;
}

static int execute_command(const struct child_command *command, struct child_answer *answer,
			   void *data)
{
	size_t room = WH_KEY_MAX;
	int error;

	switch (command->op) {
	case CHILD_START:
		return engine_start(command, answer);
	case CHILD_MEMORY:
		return memory_allocate(command, answer);
	case CHILD_FREE:
		return memory_release(&memories[command->index]);
	case CHILD_REGION:
		return add_region(command, command->offset, command->length,
				  command->text[0] ? command->text : NULL, &answer->value);
	case CHILD_REGIONS:
		return add_regions(command, answer);
	case CHILD_UNREGISTER:
		return region_unregister(command->index);
	case CHILD_KEY:
		error = wh_region_pack_key(regions[command->index], data, &room);
		answer->length = error ? 0 : room;
		return error;
	case CHILD_ADDRESS:
		answer->value = (uintptr_t)memories[command->index].base;
		return 0;
	case CHILD_NOTIFICATION:
		error = note_take(engine, data, command->timeout);
		answer->length = error ? 0 : sizeof(struct note);
		return error;
	case CHILD_FDS:
		answer->value = count_fds();
		return 0;
	case CHILD_RESIDENT:
		answer->value = resident();
		return 0;
	case CHILD_PEER:
		return open_peer(command);
	case CHILD_PEER_CLOSE:
		error = wh_peer_close(peers[command->peer]);
		peers[command->peer] = error ? peers[command->peer] : NULL;
		return error;
	case CHILD_TRANSFER:
		return run_transfer(command, answer);
	case CHILD_EXIT:
		return engine_leave();
	default:
		return access_bytes(command, answer);
	}
}

int child_main(int fd)
{
	static struct note data;
	struct child_command command;
	struct child_answer answer;
	int gone = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Under Yama, let the test's other processes access this one's memory. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	alarm(LIFE);
	for (;;) {
		const void *bytes = &data;

		driven_wait(fd, WH_FOREVER);
		if (read_all(fd, &command, sizeof(command)) != 0)
			break;

		memset(&answer, 0, sizeof(answer));
		answer.status = execute_command(&command, &answer, &data);
		if (answer.status < 0 && !answer.text[0])
			snprintf(answer.text, sizeof(answer.text), "%s", wh_error_text());
		if (command.op == CHILD_FETCH)
			bytes = fetched ? fetched : memories[command.index].base + command.offset;
		hidden_begin();
		gone = send_all(fd, &answer, sizeof(answer)) != 0 ||
		       send_all(fd, bytes, answer.length) != 0;
		hidden_end();
		free(fetched);
		fetched = NULL;
		if (gone)
			return 1;
		if (command.op == CHILD_EXIT)
			return answer.status != 0;
	}
	return 1;
}
