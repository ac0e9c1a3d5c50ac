/* SPDX-License-Identifier: Apache-2.0 */
/* member.c: a member of a set of weights, as a process */
#include "member.h"
#include "gpu.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#define LIFE 115 /* seconds until the alarm */
#define BIAS 256 /* bytes */

static struct wh_engine *engine;
static struct wh_weights *weights;
static struct model model;
static uint32_t me;
static unsigned char *memory[2]; /* a source's; a target's two buffers */
static struct wh_weights_view held;

/* ---- the model --------------------------------------------------------- */

static uint64_t share(uint64_t all, uint32_t parts, uint32_t part)
{
	return all * part / parts;
}

static uint32_t copies(void)
{
	return model.copies ? model.copies : 1;
}

static bool is_source(uint32_t index)
{
	return index < model.sources;
}

/* The box of "w" that a member holds or wants: first and last row, first and last column. */
static void box_of(uint32_t index, uint64_t begin[2], uint64_t end[2])
{
	uint32_t shards = model.sources / copies();
	uint32_t part = is_source(index) ? index % shards : index - model.sources;
	uint32_t parts = is_source(index) ? shards : model.targets;
	bool all = !is_source(index) && model.wants == WANTS_ALL;
	int cut = !is_source(index) && model.wants == WANTS_COLUMNS;

	begin[0] = begin[1] = 0;
	end[0] = model.rows;
	end[1] = model.columns;
	if (all)
		return;
	begin[cut] = share(end[cut], parts, part);
	end[cut] = share(end[cut], parts, part + 1);
}

static uint64_t bytes_of(uint32_t index)
{
	uint64_t begin[2], end[2];

	box_of(index, begin, end);
	return BIAS + (end[0] - begin[0]) * (end[1] - begin[1]);
}

static void model_fill(unsigned char *memory_at, uint64_t version)
{
	uint64_t begin[2], end[2], row;
	unsigned char *bytes = bytes_on_gpu(model.kind) ? malloc(bytes_of(me)) : memory_at;
	unsigned char *at = bytes;

	box_of(me, begin, end);
	pattern_fill(at, BIAS, 0, ~version);
	for (at += BIAS, row = begin[0]; row < end[0]; row++, at += end[1] - begin[1])
		pattern_fill(at, end[1] - begin[1], row * model.columns + begin[1], version);
	if (bytes == memory_at)
		return;
	bytes_put(memory_at, bytes, bytes_of(me), model.kind);
	free(bytes);
}

static bool host_check(const unsigned char *at, uint64_t version)
{
	uint64_t begin[2], end[2], row;

	box_of(me, begin, end);
	if (pattern_check(at, BIAS, 0, ~version) != PATTERN_GOOD)
		return false;
	for (at += BIAS, row = begin[0]; row < end[0]; row++, at += end[1] - begin[1])
		if (pattern_check(at, end[1] - begin[1], row * model.columns + begin[1], version) !=
		    PATTERN_GOOD)
			return false;
	return true;
}

static bool model_check(const unsigned char *at, uint64_t version)
{
	unsigned char *copy;
	bool good;

	if (!bytes_on_gpu(model.kind)) {
		good = host_check(at, version);
	} else {
		copy = malloc(bytes_of(me));
		bytes_get(copy, at, bytes_of(me), model.kind);
		good = host_check(copy, version);
		free(copy);
	}
	if (!good)
		tell_bytes("wrong");
	return good;
}

/* ---- calls ------------------------------------------------------------- */

static void log_line(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	fprintf(stderr, "member %u: %s\n", me, record->text);
}

static int engine_start(const struct member_command *command, struct member_answer *answer)
{
	const char *config[5] = { NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .name = command->names[command->index],
					     .config = config,
					     .log = getenv("TESTS_LOG") ? log_line : NULL };
	int error;

	for (int i = 0, n = 0; i < 4; i++)
		if (command->config[i][0])
			config[n++] = command->config[i];
	error = wh_engine_open(&options, &engine);
	if (!error)
		snprintf(answer->text, sizeof(answer->text), "%s", wh_engine_url(engine));
	return error;
}

static int weights_open(const struct member_command *command)
{
	struct wh_weights_tensor tensors[2] = { { .name = "bias", .type = "u8", .dims = 1 },
						{ .name = "w", .type = "u8", .dims = 2 } };
	uint64_t bias = BIAS, half = BIAS / 2, shape[2];
	struct wh_weights_engine engines[MEMBERS] = { { 0 } };
	struct wh_weights_region regions[MEMBERS] = { { 0 } };
	struct wh_weights_slice slices[2 * MEMBERS] = { { 0 } };
	uint64_t begin[MEMBERS][2], end[MEMBERS][2];
	struct wh_weights_layout layouts[2];
	struct wh_weights_memory given = { .region = "weights" };
	struct wh_memory_options allocate = { .size = sizeof(allocate) };
	struct wh_weights_options options = { .size = sizeof(options),
					      .allocate = &allocate,
					      .sources = &layouts[0],
					      .targets = &layouts[1],
					      .memory = &given,
					      .memory_count = 1 };

	model = command->model;
	me = command->index;
	shape[0] = model.rows;
	shape[1] = model.columns;
	tensors[0].shape = &bias;
	tensors[1].shape = shape;
	if (command->value == 1) {
		tensors[0].type = "f16";
		tensors[0].shape = &half;
	}
	for (uint32_t i = 0; i < model.sources + model.targets; i++) {
		uint32_t at = is_source(i) ? i : i - model.sources;

		engines[i].name = command->names[i];
		engines[i].host = model.separate_hosts ? NULL : "here";
		engines[i].url = model.by_name ? NULL : command->urls[i];
		regions[i] = (struct wh_weights_region){ .name = "weights",
							 .bytes = bytes_of(i),
							 .engine = at };
		box_of(i, begin[i], end[i]);
		slices[2 * i] = (struct wh_weights_slice){ .tensor = 0, .region = at };
		slices[2 * i + 1] = (struct wh_weights_slice){
			.tensor = 1, .region = at, .offset = BIAS, .begin = begin[i], .end = end[i]
		};
	}
	for (int side = 0; side < 2; side++) {
		uint32_t first = side ? model.sources : 0;
		uint32_t count = side ? model.targets : model.sources;

		layouts[side] = (struct wh_weights_layout){ .size = sizeof(layouts[side]),
							    .tensors = tensors,
							    .engines = engines + first,
							    .regions = regions + first,
							    .slices = slices + 2 * (size_t)first,
							    .tensor_count = 2,
							    .engine_count = count,
							    .region_count = count,
							    .slice_count = 2 * count };
	}
	allocate.kind = model.kind;
	options.chunk = model.chunk;
	options.piece = model.piece;
	for (int i = 0; i < (is_source(me) ? 1 : 2); i++) {
		if (!memory[i] &&
		    wh_memory_alloc(engine, bytes_of(me), &allocate, (void **)&memory[i]))
			return -ENOMEM;
		given.address[i] = memory[i];
	}
	options.memory_count = command->value != 2;
	return wh_weights_open(engine, &options, &weights);
}

static int view_check(uint64_t after, int64_t timeout, struct member_answer *answer)
{
	struct wh_weights_view view = { .size = sizeof(view) };
	int error = wh_weights_acquire(weights, after, timeout, &view);

	if (error)
		return error;
	answer->value = view.version;
	error = view.count == 1 && model_check(view.addresses[0], view.version) ? 0 : -EBADMSG;
	return wh_weights_release(weights, &view) ? -EBADF : error;
}

static int view_drop(void)
{
	int error = model_check(held.addresses[0], held.version) ? 0 : -EBADMSG;

	return wh_weights_release(weights, &held) ? -EBADF : error;
}

/* A reader that never stops looking. */
static struct {
	pthread_t thread;
	_Atomic bool stop;
	uint64_t versions, views;
	int error;
} reader;

static void *reader_run(void *arg)
{
	uint64_t last = 0;

	(void)arg;
	while (!reader.stop && !reader.error) {
		struct wh_weights_view view = { .size = sizeof(view) };

		if (wh_weights_acquire(weights, 0, 20 * MS, &view))
			continue;
		if (view.version < last || !model_check(view.addresses[0], view.version))
			reader.error = -EBADMSG;
		reader.versions += view.version != last;
		reader.views++;
		last = view.version;
		if (wh_weights_release(weights, &view))
			reader.error = -EBADF;
	}
	return NULL;
}

static int reader_end(struct member_answer *answer)
{
	reader.stop = true;
	pthread_join(reader.thread, NULL);
	answer->value = reader.versions;
	answer->more = reader.views;
	return reader.error;
}

/* Calls with wrong arguments; returns how many did not fail as they should. */
static uint64_t calls_bad(void)
{
	struct wh_weights_view view = { .size = sizeof(view) }, unsized = { .size = 0 };
	struct wh_weights_info info = { .size = 1 };
	struct wh_weights_member other = { .size = sizeof(other) };
	bool source = is_source(me);
	uint64_t bad = 0;

	bad += wh_weights_publish(NULL, 1) != -EINVAL;
	bad += wh_weights_publish(weights, 0) != (source ? -EINVAL : -EACCES);
	bad += !source && wh_weights_retract(weights) != -EACCES;
	bad += wh_weights_acquire(weights, 0, 0, NULL) != -EINVAL;
	bad += wh_weights_acquire(weights, UINT64_MAX, 0, &view) != (source ? -EACCES : -EAGAIN);
	bad += wh_weights_release(weights, &unsized) != -EINVAL;
	bad += wh_weights_release(weights, &view) != -EINVAL;
	bad += wh_weights_info(weights, &info) != -EINVAL;
	bad += wh_weights_info(weights, NULL) != -EINVAL;
	bad += wh_weights_member(weights, 1000, &other) != -ENOENT;
	bad += wh_weights_explain(weights, NULL, 1) != -EINVAL;
	bad += wh_weights_explain(weights, NULL, 0) <= 0;
	bad += wh_weights_wait(weights, UINT64_MAX, 0) != -EAGAIN;
	bad += wh_weights_close(NULL) != 0;
	return bad;
}

static int weights_close(void)
{
	int error = wh_weights_close(weights);

	for (int tries = 0; error == -EBUSY && tries < 10; tries++)
		error = wh_weights_close(weights);
	weights = error ? weights : NULL;
	return error;
}

static int engine_leave(void)
{
	int error = weights ? weights_close() : 0;

	for (int i = 0; !error && i < 2; i++)
		if (memory[i])
			error = wh_memory_free(engine, memory[i]);
	return error ? error : wh_engine_close(engine);
}

static int received(struct member_answer *answer)
{
	struct wh_weights_info info = { .size = sizeof(info) };
	struct wh_weights_member target = { .size = sizeof(target) };
	int error;

	if (is_source(me)) {
		error = wh_weights_member(weights, model.sources, &target);
		answer->value = target.received;
		return error;
	}
	error = wh_weights_info(weights, &info);
	answer->value = info.received;
	answer->more = info.total;
	return error;
}

static int execute(const struct member_command *command, struct member_answer *answer)
{
	struct wh_weights_info info = { .size = sizeof(info) };
	int error;

	switch (command->op) {
	case MEMBER_ENGINE:
		return engine_start(command, answer);
	case MEMBER_OPEN:
		return weights_open(command);
	case MEMBER_PUBLISH:
		model_fill(memory[0], command->value);
		return wh_weights_publish(weights, command->value);
	case MEMBER_RETRACT:
		error = wh_weights_retract(weights);
		hidden_begin(); /* others may still read it: what they get is thrown away */
		model_fill(memory[0], command->value);
		hidden_end();
		return error;
	case MEMBER_WAIT:
		return wh_weights_wait(weights, command->value, command->timeout);
	case MEMBER_CHECK:
		return view_check(command->value, command->timeout, answer);
	case MEMBER_HOLD:
		held = (struct wh_weights_view){ .size = sizeof(held) };
		error = wh_weights_acquire(weights, 0, command->timeout, &held);
		answer->value = held.version;
		return error;
	case MEMBER_DROP:
		return view_drop();
	case MEMBER_READ:
		return -pthread_create(&reader.thread, NULL, reader_run, NULL);
	case MEMBER_READ_END:
		return reader_end(answer);
	case MEMBER_INFO:
		error = wh_weights_info(weights, &info);
		answer->value = info.current;
		answer->more = info.total;
		return error;
	case MEMBER_RECEIVED:
		return received(answer);
	case MEMBER_LAUNCHES:
		answer->value = fake_calls("cuLaunchKernel");
		return 0;
	case MEMBER_CANCEL:
		return wh_weights_cancel(weights, command->value);
	case MEMBER_EXPLAIN:
		error = wh_weights_explain(weights, answer->text, sizeof(answer->text));
		return error < 0 ? error : 0;
	case MEMBER_BAD:
		answer->value = calls_bad();
		return 0;
	case MEMBER_CLOSE:
		return weights_close();
	default:
		return engine_leave();
	}
}

int member_main(int fd)
{
	static struct member_command command;
	static struct member_answer answer;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	alarm(LIFE);
	while (read_all(fd, &command, sizeof(command)) == 0) {
		memset(&answer, 0, sizeof(answer));
		answer.status = execute(&command, &answer);
		if (answer.status < 0 && !answer.text[0])
			snprintf(answer.text, sizeof(answer.text), "%s", wh_error_text());
		if (send_all(fd, &answer, sizeof(answer)) != 0)
			return 1;
		if (command.op == MEMBER_EXIT)
			return answer.status != 0;
	}
	return 1;
}
