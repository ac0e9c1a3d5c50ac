/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules, functions and launches. An image is checked only as far as a driver needs to accept or
 * refuse it. The name of a kernel selects its twin: a host function that does the kernel's work on
 * the driver's own mappings, one block of the grid after the other.
 */
#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

#include "../../kernels/blocks.h"

enum { JIT_ERROR_LOG = 5, JIT_ERROR_LOG_SIZE = 6, JIT_OPTIONS = 35 };
enum { MISALIGNED_ADDRESS = 716, MAX_THREADS = 1024 };
/* The newest PTX version that the driver accepts, times ten: that of CUDA 13.0. */
#define PTX_VERSION 90
/* The second byte of a cubin's e_flags, as nvcc 13.0 writes them: 90 for sm_90. */
#define FLAGS_ARCHITECTURE 49

struct fake_module {
	struct wh_list link;
	struct fake_context *context;
	char *ptx; /* NULL: a binary */
	struct wh_list functions;
};

struct fake_function {
	struct wh_list link;
	struct fake_module *module;
	const struct fake_twin *twin;
};

static struct wh_list modules = { &modules, &modules }; /* under fake_lock */

/* ---- the gather-scatter kernels -------------------------------------------------------------- */

/* A 64-bit word of a list in the GPU's memory. */
static int load_word(const struct fake_launch *launch, uint64_t list, uint64_t index, uint64_t *out)
{
	size_t length = sizeof(*out);
	const char *at;

	at = fake_translate(launch->context, FAKE_BY_KERNEL, list + 8 * index, &length, false);
	if (!at || length < sizeof(*out))
		return FAKE_ILLEGAL_ADDRESS;
	memcpy(out, at, sizeof(*out));
	return 0;
}

/* Where one side of a chunk starts. */
static int chunk_address(const struct fake_launch *launch, uint64_t bases, uint64_t inline_base,
			 uint64_t offsets, uint64_t stride, uint64_t base, uint64_t index,
			 uint64_t *out)
{
	uint64_t start = inline_base, offset = stride * index;
	int error = 0;

	if (bases)
		error = load_word(launch, bases, base, &start);
	if (!error && offsets)
		error = load_word(launch, offsets, index, &offset);
	*out = start + offset;
	return error;
}

static int copy_chunk(const struct fake_launch *launch, uint64_t to, uint64_t from, size_t length)
{
	while (length) {
		size_t piece = length;
		char *target, *source;

		source = fake_translate(launch->context, FAKE_BY_KERNEL, from, &piece, false);
		target = fake_translate(launch->context, FAKE_BY_KERNEL, to, &piece, true);
		if (!source || !target)
			return FAKE_ILLEGAL_ADDRESS;
		memcpy(target, source, piece);
		to += piece;
		from += piece;
		length -= piece;
	}
	return 0;
}

static int move_chunk(const struct fake_launch *launch, const struct wh_blocks_job *job,
		      uint64_t item, uint64_t unit)
{
	uint64_t block = item / job->chunks, at = item % job->chunks * job->chunk_length;
	uint64_t base = block / job->count, index = block % job->count, from = 0, to = 0;
	uint64_t length = job->block_length - at;
	uint64_t inline_source = job->source_bases ? 0 : job->source_base[base % WH_BLOCKS_INLINE];
	uint64_t inline_target = job->target_bases ? 0 : job->target_base[base % WH_BLOCKS_INLINE];
	int error;

	error = chunk_address(launch, job->source_bases, inline_source, job->source_offsets,
			      job->source_stride, base, index, &from);
	if (!error)
		error = chunk_address(launch, job->target_bases, inline_target, job->target_offsets,
				      job->target_stride, base, index, &to);
	if (error)
		return error;
	if (length > job->chunk_length)
		length = job->chunk_length;
	if ((from + at) % unit || (to + at) % unit || length % unit)
		return MISALIGNED_ADDRESS;
	return copy_chunk(launch, to + at, from + at, length);
}

/* The last block of the grid sets the flag. */
static int finish_blocks(const struct fake_launch *launch, const struct wh_blocks_job *job)
{
	size_t length = 4, flag_length = 4;
	_Atomic uint32_t *counter, *flag;

	if (!job->flag)
		return 0;
	counter = (_Atomic uint32_t *)(void *)fake_translate(launch->context, FAKE_BY_KERNEL,
							     job->counter, &length, true);
	flag = (_Atomic uint32_t *)(void *)fake_translate(launch->context, FAKE_BY_KERNEL,
							  job->flag, &flag_length, true);
	if (!counter || !flag)
		return FAKE_ILLEGAL_ADDRESS;
	if (job->counter % 4 || job->flag % 4)
		return MISALIGNED_ADDRESS;
	if (atomic_fetch_add(counter, 1) == launch->grid[0] - 1) {
		*counter = 0;
		*flag = job->flag_value;
	}
	return 0;
}

static int run_blocks(const struct fake_launch *launch, uint64_t unit)
{
	const struct wh_blocks_job *job = launch->parameters[0];
	uint64_t groups = WH_BLOCKS_THREADS >> job->group_shift, step = launch->grid[0] * groups;
	int error = 0;

	/* Launches that would divide by 0 or skip bytes. */
	if (launch->block[0] != WH_BLOCKS_THREADS || !groups || !job->chunks || !job->count)
		return FAKE_LAUNCH_FAILED;
	for (uint64_t group = 0; group < groups && !error; group++)
		for (uint64_t item = launch->index[0] * groups + group; item < job->items && !error;
		     item += step)
			error = move_chunk(launch, job, item, unit);
	return error ? error : finish_blocks(launch, job);
}

static int blocks_16(const struct fake_launch *launch)
{
	return run_blocks(launch, 16);
}

static int blocks_8(const struct fake_launch *launch)
{
	return run_blocks(launch, 8);
}

static int blocks_4(const struct fake_launch *launch)
{
	return run_blocks(launch, 4);
}

static int blocks_1(const struct fake_launch *launch)
{
	return run_blocks(launch, 1);
}

/* ---- twins ----------------------------------------------------------------------------------- */

/* For the fake's own tests: fake_fill(uint64_t address, uint32_t value, uint32_t count). Each block
 * writes one word. */
static int twin_fill(const struct fake_launch *launch)
{
	uint64_t address = *(uint64_t *)launch->parameters[0] + 4ULL * launch->index[0];
	size_t length = 4;
	char *at = fake_translate(launch->context, FAKE_BY_KERNEL, address, &length, true);

	if (launch->index[0] >= *(uint32_t *)launch->parameters[2])
		return 0;
	if (!at || length < 4)
		return FAKE_ILLEGAL_ADDRESS;
	memcpy(at, launch->parameters[1], 4);
	return 0;
}

#define BOUNCE_SECONDS 10

/* wh_bounce(uint64_t in, uint64_t out, uint32_t rounds, uint32_t patience): kernels/bounce.cu. The
 * kernel counts its polls (`patience`) for each round; this waits 10 s for all rounds, because the
 * thread that it waits for may share its CPU. */
static int twin_bounce(const struct fake_launch *launch)
{
	uint64_t in_address = *(uint64_t *)launch->parameters[0];
	uint64_t out_address = *(uint64_t *)launch->parameters[1];
	uint32_t rounds = *(uint32_t *)launch->parameters[2];
	size_t in_length = 4, out_length = 4;
	_Atomic uint32_t *in, *out;
	time_t end = time(NULL) + BOUNCE_SECONDS;

	in = (_Atomic uint32_t *)(void *)fake_translate(launch->context, FAKE_BY_KERNEL, in_address,
							&in_length, false);
	out = (_Atomic uint32_t *)(void *)fake_translate(launch->context, FAKE_BY_KERNEL,
							 out_address, &out_length, true);
	if (!in || !out)
		return FAKE_ILLEGAL_ADDRESS;
	if (in_address % 4 || out_address % 4)
		return MISALIGNED_ADDRESS;
	for (uint32_t next = 1; next <= rounds; next++) {
		while (*in != next) {
			if (time(NULL) >= end)
				return 0;
			sched_yield();
		}
		*out = next;
	}
	return 0;
}

#define JOB                                                                                        \
	{                                                                                          \
		{                                                                                  \
			sizeof(struct wh_blocks_job), 8                                            \
		}                                                                                  \
	}

static const struct fake_twin twins[] = {
	{ "wh_blocks_16", 1, JOB, blocks_16 },
	{ "wh_blocks_8", 1, JOB, blocks_8 },
	{ "wh_blocks_4", 1, JOB, blocks_4 },
	{ "wh_blocks_1", 1, JOB, blocks_1 },
	{ "wh_bounce", 4, { { 8, 8 }, { 8, 8 }, { 4, 4 }, { 4, 4 } }, twin_bounce },
	{ "fake_fill", 3, { { 8, 8 }, { 4, 4 }, { 4, 4 } }, twin_fill },
};

static const struct fake_twin *find_twin(const char *name)
{
	for (size_t i = 0; i < sizeof(twins) / sizeof(twins[0]); i++)
		if (strcmp(twins[i].name, name) == 0)
			return &twins[i];
	return NULL;
}

/* ---- modules --------------------------------------------------------------------------------- */

/* Skip spaces and comments at the start of the text. */
static const char *skip_comments(const char *at)
{
	for (;;) {
		while (isspace((unsigned char)*at))
			at++;
		if (at[0] == '/' && at[1] == '/') {
			at += strcspn(at, "\n");
		} else if (at[0] == '/' && at[1] == '*') {
			const char *end = strstr(at + 2, "*/");

			if (!end)
				return at;
			at = end + 2;
		} else {
			return at;
		}
	}
}

static int check_ptx(const char *at, char log[128])
{
	char *end;
	long version;
	int target;

	at += strlen(".version");
	version = strtol(at, &end, 10) * 10;
	version += *end == '.' ? strtol(end + 1, &end, 10) : 0;
	if (version < 10) {
		snprintf(log, 128, "ptxas fatal   : Invalid .version");
		return FAKE_INVALID_PTX;
	}
	if (version > PTX_VERSION) {
		snprintf(log, 128,
			 "ptxas application ptx input, line 1; fatal   : Unsupported "
			 ".version %ld.%ld; current version is '%d.%d'",
			 version / 10, version % 10, PTX_VERSION / 10, PTX_VERSION % 10);
		return FAKE_UNSUPPORTED_PTX;
	}
	at = skip_comments(end);
	if (strncmp(at, ".target", 7) != 0) {
		snprintf(log, 128,
			 "ptxas application ptx input, line 2; fatal   : Missing .target "
			 "directive");
		return FAKE_INVALID_PTX;
	}
	at = skip_comments(at + 7);
	/* NOLINTNEXTLINE(cert-err34-c) */
	if (sscanf(at, "sm_%d", &target) == 1 && target > fake_capability()) {
		snprintf(log, 128,
			 "ptxas fatal   : SM version specified by .target is higher than "
			 "default SM version assumed");
		return FAKE_INVALID_PTX;
	}
	return FAKE_OK;
}

/* Machine code runs on its own compute capability and on later ones of the same major version. */
static int check_cubin(const unsigned char *elf)
{
	int made_for = elf[FLAGS_ARCHITECTURE], capability = fake_capability();

	return made_for / 10 == capability / 10 && made_for <= capability ? FAKE_OK :
									    FAKE_NO_BINARY;
}

/* Check an image. 0 or the driver's error; *ptx: the image is PTX. */
static int check_image(const void *image, bool *ptx, char log[128])
{
	static const unsigned char elf[] = { 0x7f, 'E', 'L', 'F' };
	static const unsigned char fatbin[] = { 0x50, 0xed, 0x55, 0xba };
	static const unsigned char wrapper[] = { 0xb1, 0x43, 0x62, 0x46 };
	const char *text;

	*ptx = false;
	if (!memcmp(image, elf, 4))
		return check_cubin(image);
	if (!memcmp(image, fatbin, 4) || !memcmp(image, wrapper, 4))
		return FAKE_OK;
	text = skip_comments(image);
	*ptx = strncmp(text, ".version", 8) == 0;
	return *ptx ? check_ptx(text, log) : FAKE_INVALID_IMAGE;
}

/* Write the log to the buffer that the options name. */
static void give_log(const char *log, unsigned count, const int *options, void **values)
{
	char *buffer = NULL;
	size_t room = 0, length = strlen(log) + 1;

	for (unsigned i = 0; i < count; i++) {
		if (options[i] == JIT_ERROR_LOG)
			buffer = values[i];
		else if (options[i] == JIT_ERROR_LOG_SIZE)
			room = (uintptr_t)values[i];
	}
	if (!buffer || !room)
		return;
	snprintf(buffer, room, "%s", log);
	for (unsigned i = 0; i < count; i++)
		if (options[i] == JIT_ERROR_LOG_SIZE)
			values[i] = (void *)(uintptr_t)(length < room ? length : room);
}

FAKE_API int cuModuleLoadDataEx(struct fake_module **out, const void *image, unsigned count,
				int *options, void **values)
{
	struct fake_context *context;
	struct fake_module *module;
	char log[128] = "";
	bool ptx;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!out || !image || (count && (!options || !values)))
		return FAKE_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (options[i] < 0 || options[i] >= JIT_OPTIONS)
			return FAKE_INVALID_VALUE;
	error = check_image(image, &ptx, log);
	give_log(log, count, options, values);
	if (error)
		return error;
	module = calloc(1, sizeof(*module));
	if (module && ptx)
		module->ptx = strdup(image);
	if (!module || (ptx && !module->ptx)) {
		free(module);
		return FAKE_OUT_OF_MEMORY;
	}
	module->context = context;
	wh_list_init(&module->functions);
	pthread_mutex_lock(&fake_lock);
	wh_list_append(&modules, &module->link);
	pthread_mutex_unlock(&fake_lock);
	*out = module;
	return FAKE_OK;
}

FAKE_API int cuModuleLoadData(struct fake_module **out, const void *image)
{
	FAKE_ENTER();
	return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}

/* Under fake_lock. */
static bool known_module(const struct fake_module *module)
{
	for (struct wh_list *l = modules.next; l != &modules; l = l->next)
		if (wh_container(l, struct fake_module, link) == module)
			return true;
	return false;
}

FAKE_API int cuModuleUnload(struct fake_module *module)
{
	struct wh_list *l;
	int error = FAKE_INVALID_HANDLE;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	if (known_module(module)) {
		error = fake_health(module->context);
		wh_list_remove(&module->link);
		while ((l = wh_list_take(&module->functions)))
			free(wh_container(l, struct fake_function, link));
		free(module->ptx);
		free(module);
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

/* Does the text have a kernel of that name? */
static bool has_entry(const char *ptx, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = strstr(ptx, ".entry"); at; at = strstr(at, ".entry")) {
		at = skip_comments(at + 6);
		if (strncmp(at, name, length) == 0 && !isalnum((unsigned char)at[length]) &&
		    at[length] != '_')
			return true;
	}
	return false;
}

FAKE_API int cuModuleGetFunction(struct fake_function **out, struct fake_module *module,
				 const char *name)
{
	const struct fake_twin *twin;
	struct fake_function *function;
	int error;

	FAKE_ENTER();
	if (!out || !name || !*name)
		return FAKE_INVALID_VALUE;
	twin = find_twin(name);
	pthread_mutex_lock(&fake_lock);
	error = known_module(module) ? fake_health(module->context) : FAKE_INVALID_HANDLE;
	if (!error && (!twin || (module->ptx && !has_entry(module->ptx, name))))
		error = FAKE_NOT_FOUND;
	if (!error) {
		function = calloc(1, sizeof(*function));
		if (function) {
			function->module = module;
			function->twin = twin;
			wh_list_append(&module->functions, &function->link);
			*out = function;
		} else {
			error = FAKE_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return error;
}

/* Under fake_lock. */
static bool known_function(const struct fake_function *function)
{
	for (struct wh_list *m = modules.next; m != &modules; m = m->next) {
		struct fake_module *module = wh_container(m, struct fake_module, link);
		const struct wh_list *head = &module->functions;

		for (struct wh_list *l = head->next; l != head; l = l->next)
			if (wh_container(l, struct fake_function, link) == function)
				return true;
	}
	return false;
}

FAKE_API int cuFuncGetAttribute(int *out, int attribute, struct fake_function *function)
{
	static const int values[] = { MAX_THREADS, 0, 0, 0, 32, PTX_VERSION, 90, 0, 49152, -1 };
	bool found;

	FAKE_ENTER();
	if (!out || attribute < 0 || attribute > 15)
		return FAKE_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	found = known_function(function);
	pthread_mutex_unlock(&fake_lock);
	if (!found)
		return FAKE_INVALID_HANDLE;
	*out = attribute < (int)(sizeof(values) / sizeof(values[0])) ? values[attribute] : 0;
	return FAKE_OK;
}

/* Checks the handle and no more: the fake never loads functions lazily. */
FAKE_API int cuFuncLoad(struct fake_function *function)
{
	bool found;

	FAKE_ENTER();
	pthread_mutex_lock(&fake_lock);
	found = known_function(function);
	pthread_mutex_unlock(&fake_lock);
	return found ? FAKE_OK : FAKE_INVALID_HANDLE;
}

/* ---- launching ------------------------------------------------------------------------------- */

struct launch_op {
	struct fake_op op;
	const struct fake_twin *twin;
	struct fake_launch launch;
	char *values; /* the parameters */
};

static int do_launch(struct fake_op *op)
{
	struct launch_op *l = (struct launch_op *)op;
	struct fake_launch *launch = &l->launch;
	uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
	int error = 0;

	fake_take_time(true);
	launch->context = op->context;
	pthread_rwlock_rdlock(&fake_map_lock);
	for (uint64_t i = 0; i < blocks && !error; i++) {
		launch->index[0] = (unsigned)(i % launch->grid[0]);
		launch->index[1] = (unsigned)(i / launch->grid[0] % launch->grid[1]);
		launch->index[2] = (unsigned)(i / launch->grid[0] / launch->grid[1]);
		error = l->twin->run(launch);
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

static void end_launch(struct fake_op *op)
{
	free(((struct launch_op *)op)->values);
}

/* The parameters, from an array of pointers or from a buffer. */
static int take_parameters(struct launch_op *l, void **pointers, void **extra)
{
	const struct fake_twin *twin = l->twin;
	size_t offset[8], total = 0, given = 0;
	const char *buffer = NULL;

	for (unsigned i = 0; i < twin->count; i++) {
		size_t alignment = twin->parameters[i].alignment;

		offset[i] = (total + alignment - 1) / alignment * alignment;
		total = offset[i] + twin->parameters[i].size;
	}
	if (!pointers == !extra)
		return FAKE_INVALID_VALUE;
	for (; extra && *extra; extra += 2) {
		if (*extra == (void *)1)
			buffer = extra[1];
		else if (*extra == (void *)2)
			given = *(size_t *)extra[1];
		else
			return FAKE_INVALID_VALUE;
	}
	if (!pointers && (!buffer || given < total))
		return FAKE_INVALID_VALUE;
	l->values = malloc(total);
	if (!l->values)
		return FAKE_OUT_OF_MEMORY;
	for (unsigned i = 0; i < twin->count; i++) {
		l->launch.parameters[i] = l->values + offset[i];
		memcpy(l->values + offset[i], pointers ? pointers[i] : buffer + offset[i],
		       twin->parameters[i].size);
	}
	return FAKE_OK;
}

/* CUlaunchConfig */
struct launch_config {
	unsigned grid[3], block[3], shared;
	void *stream;
	const struct {
		int id, unused;
		char value[64];
	} * attributes;
	unsigned count;
};

static int launch_submit(struct fake_function *function, const struct launch_config *config,
			 void **parameters, void **extra)
{
	const unsigned *grid = config->grid, *block = config->block;
	struct fake_context *context = NULL, *owner = NULL;
	struct launch_op *l;
	int error;

	if (!grid[0] || grid[0] > INT32_MAX || !grid[1] || grid[1] > 65535 || !grid[2] ||
	    grid[2] > 65535 || !block[0] || !block[1] || !block[2] || block[2] > 64 ||
	    block[0] > MAX_THREADS || block[1] > MAX_THREADS ||
	    block[0] * block[1] * block[2] > MAX_THREADS || config->shared > 49152)
		return FAKE_INVALID_VALUE;
	l = calloc(1, sizeof(*l));
	if (!l)
		return FAKE_OUT_OF_MEMORY;
	l->op.run = do_launch;
	l->op.end = end_launch;
	memcpy(l->launch.grid, grid, sizeof(l->launch.grid));
	memcpy(l->launch.block, block, sizeof(l->launch.block));
	pthread_mutex_lock(&fake_lock);
	if (known_function(function)) {
		l->twin = function->twin;
		owner = function->module->context;
	}
	pthread_mutex_unlock(&fake_lock);
	error = owner ? fake_stream_context(config->stream, &context) : FAKE_INVALID_HANDLE;
	if (!error && context != owner) /* a function runs in streams of its own context */
		error = FAKE_INVALID_HANDLE;
	if (!error)
		error = take_parameters(l, parameters, extra);
	if (!error)
		return fake_submit(config->stream, &l->op, false);
	free(l->values);
	free(l);
	return error;
}

FAKE_API int cuLaunchKernel(struct fake_function *function, unsigned grid_x, unsigned grid_y,
			    unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
			    unsigned shared, void *stream, void **parameters, void **extra)
{
	const struct launch_config config = { .grid = { grid_x, grid_y, grid_z },
					      .block = { block_x, block_y, block_z },
					      .shared = shared,
					      .stream = stream };

	FAKE_ENTER();
	return launch_submit(function, &config, parameters, extra);
}

/* Launches run one after the other all the same. It also fails and is counted as cuLaunchKernel, so
 * that tests need not know which of them the library calls. */
FAKE_API int cuLaunchKernelEx(const struct launch_config *config, struct fake_function *function,
			      void **parameters, void **extra)
{
	static struct fake_call as;
	int error;

	FAKE_ENTER();
	error = fake_enter(&as, "cuLaunchKernel");
	if (error)
		return error;
	for (unsigned i = 0; i < config->count; i++)
		if (config->attributes[i].id != 6) /* PROGRAMMATIC_STREAM_SERIALIZATION */
			return FAKE_NOT_SUPPORTED;
	return launch_submit(function, config, parameters, extra);
}
