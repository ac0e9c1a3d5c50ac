/* SPDX-License-Identifier: Apache-2.0 */
/* wherry window: what CPU windows onto GPU memory do here, and how fast. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "engine.h"
#include "output.h"
#include "program.h"
#include "window.h"

#define SIZE_MOST (UINT64_C(1) << 34)
#define ROUNDS_MOST 100000
#define THREADS_MOST 64

static const struct subcommand {
	const char *name;
	int (*run)(struct window_choices *choices);
} subcommands[] = {
	{ "check", window_check },
};

#define SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

/* ---- the command line ------------------------------------------------------------------------- */

static const struct subcommand *find(const char *name)
{
	struct suggestion suggestion = { .word = name };

	for (size_t i = 0; i < SUBCOMMANDS; i++) {
		if (!strcmp(subcommands[i].name, name))
			return &subcommands[i];
		suggest(&suggestion, subcommands[i].name);
	}
	if (suggestion.best)
		usage_error("no '%s'; did you mean '%s'?", name, suggestion.best);
	else
		usage_error("no '%s'", name);
	return NULL;
}

static int add_memory(struct window_choices *choices, const char *text)
{
	struct memory *memory = &choices->memories[choices->memory_count];
	const char *rest, *wrong;

	if (choices->memory_count == WINDOW_MEMORIES)
		return usage_error("--memory: at most %d", WINDOW_MEMORIES);
	wrong = memory_parse(text, memory, &rest);
	if (wrong)
		return usage_error("--memory: '%s' %s", text, wrong);
	if (*rest)
		return usage_error("--memory: '%s' has ':%s' behind the GPU; --size takes a size", text,
				   rest);
	if (!memory_on_gpu(memory->kind))
		return usage_error("--memory: '%s' is no GPU's memory, which is what windows are for",
				   text);
	if (memory->kind == WH_MEMORY_MANAGED)
		return usage_error("--memory: '%s': the CPU reaches managed memory without a window",
				   text);
	for (size_t i = 0; i < choices->memory_count; i++)
		if (!strcmp(choices->memories[i].name, memory->name))
			return usage_error("--memory: %s is given twice", memory->name);
	choices->memory_count++;
	return 0;
}

static int parse_memories(struct window_choices *choices)
{
	const char *text;
	int cursor = 0, error = 0;

	while (!error && (text = argument_next(choices->arguments, "memory", &cursor)))
		error = add_memory(choices, text);
	choices->memories_given = choices->memory_count;
	if (!error && !choices->memories_given)
		error = add_memory(choices, "cuda:0");
	if (!error && !choices->memories_given)
		error = add_memory(choices, "vmm:cuda:0");
	return error;
}

static int parse_numbers(struct window_choices *choices)
{
	const char *size = argument(choices->arguments, "size");
	const char *rounds = argument(choices->arguments, "rounds");
	const char *threads = argument(choices->arguments, "threads");
	uint64_t value;

	if (size) {
		if (parse_size(size, "--size", &choices->size))
			return EXIT_USAGE;
		if (!choices->size || choices->size > SIZE_MOST)
			return usage_error("--size: %s is not between 1 byte and 16 GiB", size);
	}
	if (rounds) {
		if (parse_count(rounds, "--rounds", 1, ROUNDS_MOST, &value))
			return EXIT_USAGE;
		choices->rounds = (unsigned)value;
	}
	if (threads) {
		if (parse_count(threads, "--threads", 1, THREADS_MOST, &value))
			return EXIT_USAGE;
		choices->threads = (unsigned)value;
	}
	return 0;
}

/* What is of some subcommands only. */
static int check_options(const struct window_choices *choices, const char *name)
{
	bool check = !strcmp(name, "check");

	if (choices->only && !check)
		return usage_error("--test is for wherry window check");
	if (choices->size && (check || !strcmp(name, "pingpong")))
		return usage_error("--size is not for wherry window %s", name);
	if (choices->rounds && check)
		return usage_error("--rounds is not for wherry window check");
	if (choices->threads && strcmp(name, "bandwidth") != 0)
		return usage_error("--threads is for wherry window bandwidth");
	return 0;
}

/* The engine's settings, by opening one: in a process of its own, for none may have threads here. */
static int check_settings(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	struct wh_engine *engine;
	int status = 0, code;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (!child) {
		code = engine_open(arguments, &setup, &engine);
		exit(code ? code : engine_close(engine, 0));
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return fail(ECHILD, "fork: %s", strerror(errno));
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAIL;
}

static int parse(struct window_choices *choices, const struct subcommand *subcommand)
{
	int error = parse_memories(choices);

	choices->backend = argument(choices->arguments, "backend");
	choices->only = argument(choices->arguments, "test");
	if (!error)
		error = check_choice(choices->arguments, "backend");
	if (!error)
		error = parse_numbers(choices);
	if (!error)
		error = check_options(choices, subcommand->name);
	return error ? error : check_settings(choices->arguments);
}

/* ---- running ------------------------------------------------------------------------------------ */

static json_t *document(const struct window_choices *choices, const char *name)
{
	json_t *json = output_new();
	struct bench_gpus gpus;
	char text[64];

	bench_gpus_look(bench_knob(choices->arguments, "cuda"), &gpus);
	snprintf(text, sizeof(text), "window %s", name);
	json_object_set_new(json, "command", json_string(text));
	json_object_set_new(json, "environment", bench_environment(&gpus, NAN, NAN));
	json_object_set_new(json, "backend", output_text(choices->backend));
	json_object_set(json, "results", choices->results);
	json_object_set(json, "skipped", choices->skipped);
	return json;
}

static int run(const struct arguments *arguments)
{
	struct window_choices choices = { .arguments = arguments };
	struct output_file file = { .fd = -1 };
	const struct subcommand *subcommand = find(arguments->operands[0]);
	int code, written = 0;

	if (!subcommand)
		return EXIT_USAGE;
	choices.results = json_array();
	choices.skipped = json_array();
	code = parse(&choices, subcommand);
	if (!code)
		code = output_open(&file, argument(arguments, "json"));
	choices.table = file.table;
	if (!code)
		code = subcommand->run(&choices);
	/* Also when tests have failed: which ones is what the file is for. */
	if (file.path && file.table && json_array_size(choices.results))
		written = output_write(&file, document(&choices, subcommand->name));
	output_close(&file);
	json_decref(choices.results);
	json_decref(choices.skipped);
	return written ? written : code;
}

static const struct command_option options[] = {
	{ .name = "memory", .letter = 'm', .argument = "MEM",
	  .help = "which; default cuda:0 and vmm:cuda:0", .many = true },
	{ .name = "backend", .letter = 'b', .argument = "NAME",
	  .complete = "driver dmabuf rm staged",
	  .help = "driver, dmabuf, rm or staged; default: the knob window" },
	{ .name = "test", .letter = 't', .argument = "NAME", .help = "check: this test alone" },
	{ .name = "size", .letter = 's', .argument = "SIZE",
	  .help = "bandwidth, latency, api: no more bytes than that" },
	{ .name = "rounds", .letter = 'r', .argument = "N", .help = "so many times, all but check" },
	{ .name = "threads", .letter = 'n', .argument = "N",
	  .help = "bandwidth: with up to so many threads; default 8" },
	{ .name = "json", .letter = 'j', .argument = "FILE", .complete = "file",
	  .help = "write everything to FILE; - is stdout" },
	{ .name = "config", .letter = 'c', .argument = "NAME=VALUE", .complete = "knob",
	  .help = "set a knob; wherry config lists them", .many = true, .rare = true },
	{ 0 },
};

const struct command command_window = {
	.name = "window",
	.usage = "WHAT",
	.complete = "check",
	.summary = "Check and measure CPU windows onto GPU memory",
	.details =
		"WHAT is check: is what a window shows the GPU's memory, whatever is done to it?\n\n"
		"MEM is [KIND:]cuda:GPU, KIND device (cuMemAlloc, the default), vmm (cuMemCreate) or "
		"pool (cuMemAllocAsync), GPU a number, GPU-UUID (its start will do) or a PCI address. "
		"The option may be given several times.\n\n"
		"check runs each test in a process of its own, so that one that crashes is one that "
		"has failed. A test that cannot be done, such as passing a descriptor where a backend "
		"has none, is waived, named with the reason and counted. The exit code is 2 if one "
		"has failed, and 69 if there is no GPU, no such backend, or nothing that could be "
		"tested.",
	.examples = "wherry window check                     # all tests, both kinds of memory\n"
		    "wherry window check --backend driver    # through /dev/gdrdrv\n",
	.options = options,
	.least = 1,
	.most = 1,
	.run = run,
};
