/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: weights */
/* weights-random.c: random pairs of layouts, run by real members, each byte held against slicing
 *
 * The pairs are those of the planner's property test. Their members are engines of this process, or
 * processes of their own, which live for many pairs. The regions of targets must have exactly what
 * plain slicing of the tensors gives, and zeroes between; readers look all the time, so a view that
 * has two versions, or changes, is found. Then a member is killed at a random step.
 *
 * TESTS_PAIRS and TESTS_FAULTS are the numbers of pairs without and with a killed member,
 * TESTS_SEED chooses others: ./check --release runs thousands. */
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../layouts.h"
#include "../../self.h"
#include "lib/harness.h"

#define NAMES                                                                                      \
	(3 * LAYOUTS_ENGINES) /* of both layouts, of the sources only, of the targets only         \
			       */
#define LIFE 240 /* seconds without a command, until a process ends */
#define NONE UINT32_MAX

enum op {
	OP_ENGINE = 1, /* text: its URL */
	OP_OPEN,
	OP_DIE, /* soon: when `value` thousandths of a version have come, or so many us later */
	OP_PUBLISH, /* fill the memory, and publish version `value` */
	OP_RETRACT, /* and spoil the memory */
	OP_WAIT,
	OP_CHECK, /* acquire a version after `value`, compare every byte; value: the version */
	OP_CLOSE,
	OP_END,
};

struct command {
	uint32_t op, name;
	uint64_t seed, value;
	char urls[NAMES][64];
};

struct answer {
	int32_t status;
	uint64_t value;
	char text[512];
};

/* ---- a pair ------------------------------------------------------------ */

struct pair {
	uint64_t seed, chunk, piece;
	struct wh_layout *layouts[2];
};

/* The same for the same seed, in each process. */
static void pair_make(struct pair *pair, uint64_t seed)
{
	*pair = (struct pair){ .seed = seed };
	do {
		layouts_random_pair(&seed, pair->layouts);
	} while (!pair->layouts[0]);
	if (layouts_below(&seed, 4)) {
		pair->chunk = 1 + layouts_below(&seed, 4000);
		pair->piece = 1 + layouts_below(&seed, 500);
	}
}

static void pair_free(struct pair *pair)
{
	wh_layout_free(pair->layouts[0]);
	wh_layout_free(pair->layouts[1]);
}

static const char *name_text(uint32_t name, char out[8])
{
	snprintf(out, 8, "%c%u", "est"[name / LAYOUTS_ENGINES], name % LAYOUTS_ENGINES);
	return out;
}

/* Its index in the layout, or NONE. */
static uint32_t name_engine(const struct pair *pair, uint32_t name, int side)
{
	char text[8];
	uint32_t index;

	name_text(name, text);
	return wh_layout_find_engine(pair->layouts[side], text, strlen(text), &index) ? index :
											NONE;
}

static bool is_member(const struct pair *pair, uint32_t name)
{
	return name_engine(pair, name, 0) != NONE || name_engine(pair, name, 1) != NONE;
}

struct image {
	const struct wh_layout *layout;
	const struct wh_slice *slice;
	unsigned char *bytes;
	uint64_t version;
};

static void image_put(void *arg, uint64_t element, uint64_t offset)
{
	struct image *image = arg;

	for (uint32_t i = 0; i < image->layout->tensors[image->slice->tensor].item; i++)
		image->bytes[offset + i] =
			layouts_value(image->slice->tensor, element, i, image->version);
}

/* What an engine's region has of a version, by plain slicing. */
static void image_make(const struct wh_layout *layout, uint32_t engine, uint64_t version,
		       unsigned char *bytes)
{
	memset(bytes, 0, LAYOUTS_REGION);
	for (uint32_t i = 0; i < layout->slice_count; i++) {
		struct image image = { layout, &layout->slices[i], bytes, version };

		if (image.slice->engine == engine)
			layouts_each_element(layout, image.slice, image_put, &image);
	}
}

/* ---- a pair as a program gives it -------------------------------------- */

struct description {
	struct wh_weights_layout layout;
	struct wh_weights_host hosts[LAYOUTS_HOSTS];
	struct wh_weights_tensor tensors[4];
	struct wh_weights_engine engines[LAYOUTS_ENGINES];
	struct wh_weights_region regions[LAYOUTS_ENGINES];
	struct wh_weights_slice *slices;
	uint64_t (*strides)[WH_LAYOUT_DIMS];
	char urls[LAYOUTS_ENGINES][64], locations[LAYOUTS_ENGINES][16];
};

static void describe_engines(const struct pair *pair, int side, const struct command *command,
			     struct description *out)
{
	const struct wh_layout *layout = pair->layouts[side];

	for (uint32_t name = 0; name < NAMES; name++) {
		uint32_t at = name_engine(pair, name, side);

		if (at != NONE)
			memcpy(out->urls[at], command->urls[name], sizeof(out->urls[at]));
	}
	for (uint32_t i = 0; i < LAYOUTS_ENGINES; i++) {
		const struct wh_layout_engine *engine = &layout->engines[i];

		snprintf(out->locations[i], sizeof(out->locations[i]), "cuda:%d", engine->gpu);
		out->engines[i] = (struct wh_weights_engine){
			.name = engine->name.text,
			.host = layout->hosts[engine->host].name.text,
			.location = engine->gpu < 0 ? NULL : out->locations[i],
			.url = out->urls[i],
		};
		out->regions[i] =
			(struct wh_weights_region){ .name = layout->regions[i].name.text,
						    .bytes = layout->regions[i].bytes,
						    .engine = layout->regions[i].name.owner };
	}
}

static void describe(const struct pair *pair, int side, const struct command *command,
		     struct description *out)
{
	const struct wh_layout *layout = pair->layouts[side];

	memset(out, 0, sizeof(*out));
	describe_engines(pair, side, command, out);
	for (uint32_t i = 0; i < LAYOUTS_HOSTS; i++)
		out->hosts[i] =
			(struct wh_weights_host){ .name = layout->hosts[i].name.text,
						  .nics = layout->hosts[i].nics,
						  .uplink_rate = layout->hosts[i].uplink_rate };
	for (uint32_t i = 0; i < layout->tensor_count; i++)
		out->tensors[i] =
			(struct wh_weights_tensor){ .name = layout->tensors[i].name.text,
						    .type = layout->tensors[i].type,
						    .shape = layout->tensors[i].shape,
						    .dims = layout->tensors[i].dims,
						    .item_bytes = layout->tensors[i].item };
	out->slices = calloc((size_t)layout->slice_count + 1, sizeof(*out->slices));
	out->strides = calloc((size_t)layout->slice_count + 1, sizeof(*out->strides));
	for (uint32_t i = 0; i < layout->slice_count; i++) {
		const struct wh_slice *slice = &layout->slices[i];
		const uint64_t *box = wh_slice_box(layout, slice);

		wh_slice_strides(layout, slice, out->strides[i]);
		out->slices[i] = (struct wh_weights_slice){
			.tensor = slice->tensor,
			.region = slice->region,
			.offset = slice->offset,
			.begin = box,
			.end = box + layout->tensors[slice->tensor].dims,
			.stride = slice->strided ? out->strides[i] : NULL,
		};
	}
	out->layout = (struct wh_weights_layout){ .size = sizeof(out->layout),
						  .hosts = out->hosts,
						  .tensors = out->tensors,
						  .engines = out->engines,
						  .regions = out->regions,
						  .slices = out->slices,
						  .host_count = LAYOUTS_HOSTS,
						  .tensor_count = layout->tensor_count,
						  .engine_count = layout->engine_count,
						  .region_count = layout->region_count,
						  .slice_count = layout->slice_count };
}

/* ---- a member ---------------------------------------------------------- */

struct worker {
	uint32_t name;
	struct wh_engine *engine;
	struct wh_weights *weights;
	unsigned char *memory[2][2]; /* of the sources; of the targets, by buffer */
	struct pair pair;
	uint32_t at[2]; /* in the layouts */
	pthread_t reader, death;
	_Atomic bool stop;
	bool reads;
	int error;
	uint64_t dies;
};

static int worker_start(struct worker *worker, const struct command *command, struct answer *answer)
{
	char name[8];
	struct wh_engine_options options = { .size = sizeof(options),
					     .name = name_text(command->name, name) };
	int error = wh_engine_open(&options, &worker->engine);

	worker->name = command->name;
	for (int i = 0; !error && i < 4; i++)
		error = wh_memory_alloc(worker->engine, LAYOUTS_REGION, NULL,
					(void **)&worker->memory[i / 2][i % 2]);
	if (!error)
		snprintf(answer->text, sizeof(answer->text), "%s", wh_engine_url(worker->engine));
	return error;
}

static bool view_is(const struct wh_weights_view *view, const unsigned char *image)
{
	return view->count == 1 && !memcmp(view->addresses[0], image, LAYOUTS_REGION);
}

/* Look at each version, once more when others had time to write, and wait for the next. */
static void *reader_run(void *arg)
{
	struct worker *worker = arg;
	unsigned char *image = malloc(LAYOUTS_REGION);
	uint64_t last = 0;

	while (!worker->stop && !worker->error) {
		struct wh_weights_view view = { .size = sizeof(view) };

		if (wh_weights_acquire(worker->weights, last, 20 * MS, &view))
			continue;
		image_make(worker->pair.layouts[1], worker->at[1], view.version, image);
		if (!view_is(&view, image))
			worker->error = -EBADMSG;
		sched_yield();
		if (!view_is(&view, image))
			worker->error = -EBADMSG;
		last = view.version;
		if (wh_weights_release(worker->weights, &view))
			worker->error = -EBADF;
	}
	free(image);
	return NULL;
}

static int worker_open(struct worker *worker, const struct command *command)
{
	struct description sides[2] = { { .layout = { .size = 0 } } };
	struct wh_weights_memory memory[2];
	struct wh_weights_options options = { .size = sizeof(options),
					      .sources = &sides[0].layout,
					      .targets = &sides[1].layout,
					      .memory = memory };
	int error;

	pair_make(&worker->pair, command->seed);
	options.chunk = worker->pair.chunk;
	options.piece = worker->pair.piece;
	for (int side = 0; side < 2; side++) {
		describe(&worker->pair, side, command, &sides[side]);
		worker->at[side] = name_engine(&worker->pair, worker->name, side);
		memset(worker->memory[side][0], 0, LAYOUTS_REGION);
		memset(worker->memory[side][1], 0, LAYOUTS_REGION);
		if (worker->at[side] == NONE)
			continue;
		memory[options.memory_count++] = (struct wh_weights_memory){
			.region = side ? "new" : "old",
			.address = { worker->memory[side][0],
				     side ? worker->memory[side][1] : NULL },
		};
	}
	error = wh_weights_open(worker->engine, &options, &worker->weights);
	for (int side = 0; side < 2; side++) {
		free(sides[side].slices);
		free(sides[side].strides);
	}
	worker->stop = false;
	worker->error = 0;
	worker->reads = !error && worker->at[1] != NONE;
	return worker->reads ? -pthread_create(&worker->reader, NULL, reader_run, worker) : error;
}

static int worker_close(struct worker *worker)
{
	int error;

	worker->stop = true;
	if (worker->reads)
		pthread_join(worker->reader, NULL);
	do {
		error = wh_weights_close(worker->weights);
	} while (error == -EBUSY);
	pair_free(&worker->pair);
	return error ? error : worker->error;
}

static int worker_end(struct worker *worker)
{
	for (int i = 0; i < 4; i++)
		if (wh_memory_free(worker->engine, worker->memory[i / 2][i % 2]))
			return -EBUSY;
	return wh_engine_close(worker->engine);
}

static int worker_check(struct worker *worker, const struct command *command, struct answer *answer)
{
	struct wh_weights_view view = { .size = sizeof(view) };
	int error = wh_weights_acquire(worker->weights, command->value, PATIENCE, &view);
	unsigned char *image;

	if (error) {
		snprintf(answer->text, sizeof(answer->text), "%s", wh_error_text());
		wh_weights_explain(worker->weights, answer->text + strlen(answer->text),
				   sizeof(answer->text) - strlen(answer->text));
		return error;
	}
	image = malloc(LAYOUTS_REGION);
	image_make(worker->pair.layouts[1], worker->at[1], view.version, image);
	error = view_is(&view, image) ? worker->error : -EBADMSG;
	answer->value = view.version;
	free(image);
	return wh_weights_release(worker->weights, &view) ? -EBADF : error;
}

/* Kill this process when enough has come, or after a time: a source does not know who reads. */
static void *death_run(void *arg)
{
	struct worker *worker = arg;
	struct wh_weights_info info = { .size = sizeof(info) };
	int64_t until = now() + (int64_t)worker->dies * 1000;

	do {
		if (wh_weights_info(worker->weights, &info))
			break;
	} while (worker->at[1] == NONE || !info.bytes ?
			 now() < until :
			 !info.current && info.received * 1000 < info.bytes * worker->dies);
	kill(getpid(), SIGKILL);
	return NULL;
}

/* Others may read the memory meanwhile: what they get is thrown away. */
static void worker_fill(struct worker *worker, uint64_t version)
{
	hidden_begin();
	image_make(worker->pair.layouts[0], worker->at[0], version, worker->memory[0][0]);
	hidden_end();
}

static int execute(struct worker *worker, const struct command *command, struct answer *answer)
{
	int error;

	switch (command->op) {
	case OP_ENGINE:
		return worker_start(worker, command, answer);
	case OP_OPEN:
		return worker_open(worker, command);
	case OP_DIE:
		worker->dies = command->value;
		return -pthread_create(&worker->death, NULL, death_run, worker);
	case OP_PUBLISH:
		worker_fill(worker, command->value);
		return wh_weights_publish(worker->weights, command->value);
	case OP_RETRACT:
		error = wh_weights_retract(worker->weights);
		worker_fill(worker, command->value + 100);
		return error;
	case OP_WAIT:
		return wh_weights_wait(worker->weights, command->value, PATIENCE);
	case OP_CHECK:
		return worker_check(worker, command, answer);
	case OP_CLOSE:
		return worker_close(worker);
	default:
		return worker_end(worker);
	}
}

static void execute_fully(struct worker *worker, const struct command *command,
			  struct answer *answer)
{
	memset(answer, 0, sizeof(*answer));
	answer->status = execute(worker, command, answer);
	if (answer->status < 0 && !answer->text[0])
		snprintf(answer->text, sizeof(answer->text), "%s", wh_error_text());
}

static int worker_main(int fd)
{
	static struct worker worker;
	static struct command command;
	static struct answer answer;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	do {
		alarm(LIFE);
		if (read_all(fd, &command, sizeof(command)) != 0)
			return 1;
		execute_fully(&worker, &command, &answer);
		if (send_all(fd, &answer, sizeof(answer)) != 0)
			return 1;
	} while (command.op != OP_END);
	return answer.status != 0;
}

/* ---- the test's side --------------------------------------------------- */

/* A member of the running pair: an engine here (pid 0), or a process. */
struct actor {
	bool started;
	pid_t pid;
	int fd;
	struct worker worker;
	char url[64];
};

static struct actor actors[NAMES];
static bool processes;
static struct pair running;
static struct command order;
static const char *orders[] = { "",        "start", "open",  "die",   "publish",
				"retract", "wait",  "check", "close", "end" };

static void actor_send(uint32_t name, enum op op, uint64_t value)
{
	order.op = op;
	order.name = name;
	order.seed = running.seed;
	order.value = value;
	for (uint32_t i = 0; i < NAMES; i++)
		memcpy(order.urls[i], actors[i].url, sizeof(order.urls[i]));
	if (processes)
		want_true(send_all(actors[name].fd, &order, sizeof(order)) == 0, "it has gone");
}

static uint64_t actor_receive(uint32_t name, enum op op)
{
	static struct answer answer;
	char text[8];

	if (!processes)
		execute_fully(&actors[name].worker, &order, &answer);
	else if (read_all(actors[name].fd, &answer, sizeof(answer)) != 0)
		fail_msg("pair %#llx: %s has gone", (unsigned long long)running.seed,
			 name_text(name, text));
	if (answer.status)
		fail_msg("pair %#llx: %s, %s: %s: %s", (unsigned long long)running.seed,
			 name_text(name, text), orders[op], strerrorname_np(-answer.status),
			 answer.text);
	if (op == OP_ENGINE)
		snprintf(actors[name].url, sizeof(actors[name].url), "%.63s", answer.text);
	return answer.value;
}

static void actor_start(uint32_t name)
{
	struct actor *actor = &actors[name];
	char number[16];
	char *argv[] = { (char *)"worker", (char *)"--worker", number, NULL };
	int pair[2];

	if (processes) {
		want_true(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "no socket");
		actor->pid = fork();
		if (actor->pid == 0) {
			snprintf(number, sizeof(number), "%d", dup(pair[1]));
			execv(self_path(), argv);
			_exit(127);
		}
		close(pair[1]);
		want_true(actor->pid > 0, "cannot fork");
		actor->fd = pair[0];
	}
	actor->started = true;
	actor_send(name, OP_ENGINE, 0);
	actor_receive(name, OP_ENGINE);
}

static void actor_reap(uint32_t name)
{
	int status = 0;

	if (actors[name].pid) {
		waitpid(actors[name].pid, &status, 0);
		tell_crash("an engine's process", status);
		close(actors[name].fd);
	}
	memset(&actors[name], 0, sizeof(actors[name]));
}

/* Whom to tell: members of a side. */
static bool on_side(uint32_t name, int side)
{
	return side == 2 ? is_member(&running, name) : name_engine(&running, name, side) != NONE;
}

/* All of a side at once (2: both sides), but one. Checks must have found at least version
 * `value + 1`. */
static void all_but(uint32_t but, int side, enum op op, uint64_t value)
{
	for (uint32_t name = 0; name < NAMES; name++)
		if (name != but && on_side(name, side)) {
			actor_send(name, op, value);
			if (!processes)
				actor_receive(name, op);
		}
	for (uint32_t name = 0; processes && name < NAMES; name++)
		if (name != but && on_side(name, side)) {
			uint64_t found = actor_receive(name, op);

			if (op == OP_CHECK)
				want_true(found > value, "pair %#llx: version %d of %u",
					  (unsigned long long)running.seed, (int)found, name);
		}
}

static void all(int side, enum op op, uint64_t value)
{
	all_but(NONE, side, op, value);
}

static void pair_start(uint64_t seed)
{
	pair_make(&running, seed);
	for (uint32_t name = 0; name < NAMES; name++)
		if (is_member(&running, name) && !actors[name].started)
			actor_start(name);
	all(2, OP_OPEN, 0);
}

static void pair_end(void)
{
	all(2, OP_CLOSE, 0);
	pair_free(&running);
}

static void actors_end(void)
{
	for (uint32_t name = 0; name < NAMES; name++)
		if (actors[name].started) {
			actor_send(name, OP_END, 0);
			actor_receive(name, OP_END);
			actor_reap(name);
		}
}

static int actors_kill(void **state)
{
	for (uint32_t name = 0; name < NAMES; name++)
		if (actors[name].pid) {
			kill(actors[name].pid, SIGKILL);
			actor_reap(name);
		}
	memset(actors, 0, sizeof(actors));
	return harness_end(state);
}

/* Some versions: each waited for, or each on the heels of the one before. */
static void pair_versions(uint64_t *seed)
{
	bool waits = layouts_below(seed, 2);

	for (uint64_t version = 1; version <= 3; version++) {
		all(0, OP_PUBLISH, version);
		if (waits || version == 3) {
			all(0, OP_WAIT, version);
			all(1, OP_CHECK, version - 1);
		}
		all(0, OP_RETRACT, version);
	}
}

/* ---- who can do without whom ------------------------------------------- */

struct cover {
	unsigned char *held;
	bool mark, lacks;
};

static void cover_call(void *arg, uint64_t element, uint64_t offset)
{
	struct cover *cover = arg;

	(void)offset;
	if (cover->mark)
		cover->held[element] = 1;
	else
		cover->lacks = cover->lacks || !cover->held[element];
}

/* Whether the other sources hold all that the other targets want. */
static bool is_spare(uint32_t victim)
{
	const struct wh_layout *layouts[2] = { running.layouts[0], running.layouts[1] };
	bool lacks = false;

	for (uint32_t tensor = 0; tensor < layouts[1]->tensor_count; tensor++) {
		struct cover cover = { .held = calloc(4096, 1) };

		for (int side = 0; side < 2; side++) {
			uint32_t but = name_engine(&running, victim, side);

			cover.mark = !side;
			for (uint32_t i = 0; i < layouts[side]->slice_count; i++) {
				const struct wh_slice *slice = &layouts[side]->slices[i];

				if (slice->tensor == tensor && slice->engine != but)
					layouts_each_element(layouts[side], slice, cover_call,
							     &cover);
			}
		}
		lacks = lacks || cover.lacks;
		free(cover.held);
	}
	return !lacks;
}

/* ---- tests ------------------------------------------------------------- */

static uint64_t number(const char *name, uint64_t usual)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : usual;
}

static uint64_t first_seed(void)
{
	return number("TESTS_SEED", 0x9e3779b97f4a7c15u);
}

static void run_pairs(uint64_t count)
{
	uint64_t seed = first_seed() + processes;

	for (uint64_t i = 0; i < count; i++) {
		layouts_below(&seed, 1);
		pair_start(seed);
		pair_versions(&seed);
		pair_end();
	}
	actors_end();
	print_message("%d pairs\n", (int)count);
}

static void pairs__one_process(void **state)
{
	(void)state;
	processes = false;
	/* Others read memory while it changes, and throw away what they get. */
	if (HARNESS_TURNS)
		print_message("left out under the thread sanitizer: engines of one process\n");
	else
		run_pairs(number("TESTS_PAIRS", SCALE(12, 4)));
}

static void pairs__processes(void **state)
{
	(void)state;
	processes = true;
	run_pairs(number("TESTS_PAIRS", SCALE(16, 4)));
}

/* One dies while a version is on its way. The others get it if they can without; all get it when
 * it is back, and the next one. */
static void pair_fault(uint64_t *seed, unsigned *spare)
{
	uint64_t dies = layouts_below(seed, 1000);
	static struct answer answer;
	uint32_t victim;

	do {
		victim = (uint32_t)layouts_below(seed, NAMES);
	} while (!is_member(&running, victim));
	/* It may die before it answers. */
	actor_send(victim, OP_DIE, dies);
	read_all(actors[victim].fd, &answer, sizeof(answer));
	all_but(victim, 0, OP_PUBLISH, 1);
	if (on_side(victim, 0))
		send_all(actors[victim].fd, &order, sizeof(order));
	actor_reap(victim);
	if (is_spare(victim)) {
		++*spare;
		all_but(victim, 1, OP_CHECK, 0);
	}
	actor_start(victim);
	actor_send(victim, OP_OPEN, 0);
	actor_receive(victim, OP_OPEN);
	if (on_side(victim, 0)) {
		actor_send(victim, OP_PUBLISH, 1);
		actor_receive(victim, OP_PUBLISH);
	}
	all(1, OP_CHECK, 0);
	all(0, OP_RETRACT, 1);
	all(0, OP_PUBLISH, 2);
	all(0, OP_WAIT, 2);
	all(1, OP_CHECK, 1);
	all(0, OP_RETRACT, 2);
}

static void faults__at_any_step(void **state)
{
	uint64_t seed = first_seed() + 2, count = number("TESTS_FAULTS", SCALE(3, 2));
	unsigned spare = 0;

	(void)state;
	processes = true;
	for (uint64_t i = 0; i < count; i++) {
		layouts_below(&seed, 1);
		pair_start(seed);
		pair_fault(&seed, &spare);
		pair_end();
	}
	actors_end();
	print_message("%d pairs, in %u of them the others could do without\n", (int)count, spare);
}

#define RANDOM_TEST(function)                                                                      \
	{                                                                                          \
#function, function, harness_begin, actors_kill, NULL                              \
	}

static const struct CMUnitTest tests[] = {
	RANDOM_TEST(pairs__one_process),
	RANDOM_TEST(pairs__processes),
	RANDOM_TEST(faults__at_any_step),
};

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--worker"))
		return worker_main((int)strtol(argv[2], NULL, 10));
	return harness_main(argc, argv, "weights-random", tests, sizeof(tests) / sizeof(*tests));
}
