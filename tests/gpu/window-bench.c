/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast windows are, beside the driver's own copies in the same run. Prints one JSON document:
 *
 *   window-bench [--quick] [DRIVER [BACKENDS]]
 *
 * --quick: every row once and short, to see that it works.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "platform/rm.h"
#include "util/clock.h"
#include "window/window.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define LARGEST (64 * MIB)
#define ROUNDS 9
#define SAMPLES_MAX 4096

static struct wh_windows *windows;
static struct wh_cuda_device *device;
static const char *order = "rm";
static struct wh_view *view;
static uint64_t memory;
static unsigned char *host; /* pinned */
static bool first_row = true, quick;

/* ---- figures --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double quantile(double *values, size_t count, double q)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[(size_t)(q * (double)(count - 1) + 0.5)];
}

static double gbps(size_t bytes, double us)
{
	return us > 0 ? (double)bytes / us / 1000 : 0;
}

static void row(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void row(const char *format, ...)
{
	va_list arguments;

	printf("%s\n    {", first_row ? "" : ",");
	first_row = false;
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("}");
	fflush(stdout);
}

/* ---- one copy --------------------------------------------------------------------------------- */

struct job {
	bool write;
	struct wh_copy copy;
	size_t size, walk; /* bytes gone through before starting over */
	size_t at;
};

static void by_window(struct job *j)
{
	unsigned char *window = wh_view_at(view, memory + j->at);

	if (j->write)
		wh_copy_to(j->copy, window, host + j->at, j->size);
	else
		wh_copy_from(j->copy, host + j->at, window, j->size);
}

static void by_memcpy(struct job *j)
{
	unsigned char *window = wh_view_at(view, memory + j->at);

	if (j->write) {
		memcpy(window, host + j->at, j->size);
		wh_copy_issued();
	} else {
		memcpy(host + j->at, window, j->size);
	}
}

static void by_driver(struct job *j)
{
	if (j->write)
		gpu->cuMemcpyHtoD(memory + j->at, host + j->at, j->size);
	else
		gpu->cuMemcpyDtoH(host + j->at, memory + j->at, j->size);
}

/* Microseconds of one copy, of `count` back to back: the clock takes as long as a small one. */
static double time_of(void (*run)(struct job *), struct job *j, size_t count)
{
	int64_t start = wh_now();

	for (size_t i = 0; i < count; i++) {
		run(j);
		j->at += j->size;
		if (j->at + j->size > j->walk)
			j->at = 0;
	}
	return (double)(wh_now() - start) / 1000 / (double)count;
}

struct figures {
	double p50, p99;
};

/* Samples of all rounds; the caller takes turns. */
static void sample(void (*run)(struct job *), struct job *j, size_t count, double *samples,
		   size_t *used, int64_t budget)
{
	int64_t end = wh_now() + budget;

	do {
		if (*used == SAMPLES_MAX)
			return;
		samples[(*used)++] = time_of(run, j, count);
	} while (wh_now() < end);
}

static struct figures of(double *samples, size_t used)
{
	return (struct figures){ quantile(samples, used, 0.5), quantile(samples, used, 0.99) };
}

static void copy_row(bool write, size_t size, const struct wh_copy_way *put,
		     const struct wh_copy_way *get, bool plain)
{
	static double mine[SAMPLES_MAX], theirs[SAMPLES_MAX];
	struct job j = { .write = write, .copy = { put, get }, .size = size,
			 .walk = size <= MIB ? MIB : LARGEST };
	size_t a = 0, b = 0, count = size <= 4 * KIB && write ? 64 : size <= 64 ? 8 : 1;
	int64_t budget = quick ? 0 : 4 * WH_MS;
	struct figures window, driver;

	for (int i = 0; i < ROUNDS; i++) {
		sample(plain ? by_memcpy : by_window, &j, count, mine, &a, budget);
		sample(by_driver, &j, 1, theirs, &b, budget);
	}
	window = of(mine, a);
	driver = of(theirs, b);
	row("\"what\": \"copy\", \"op\": \"%s\", \"way\": \"%s\", \"size_bytes\": %zu, "
	    "\"us\": %.3f, \"p99_us\": %.3f, \"bandwidth_GBps\": %.3f, \"limit_name\": \"%s\", "
	    "\"limit_us\": %.3f, \"limit_GBps\": %.3f, \"samples\": %zu, \"calls_per_sample\": %zu",
	    write ? "write" : "read", plain ? "libc" : (write ? put : get)->name, size, window.p50,
	    window.p99, gbps(size, window.p50), write ? "cuMemcpyHtoD" : "cuMemcpyDtoH",
	    driver.p50, gbps(size, driver.p50), a, count);
}

static void copies(void)
{
	static const size_t sizes[] = { 4, 8, 64, 1 * KIB, 4 * KIB, 64 * KIB, MIB, 16 * MIB };
	uint32_t cpu = windows->cpu;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (const struct wh_copy_way *w = wh_copy_puts; w->name; w++) {
			if ((w->needs & cpu) == w->needs && w->mappings >> WH_MAPPING_WC & 1)
				copy_row(true, sizes[s], w, NULL, false);
		}
		copy_row(true, sizes[s], NULL, NULL, true);
	}
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= MIB; s++) {
		for (const struct wh_copy_way *w = wh_copy_gets; w->name; w++) {
			if ((w->needs & cpu) == w->needs && w->mappings >> WH_MAPPING_WC & 1 &&
			    (w->needs || sizes[s] <= 64 * KIB))
				copy_row(false, sizes[s], NULL, w, false);
		}
		if (sizes[s] <= 64 * KIB)
			copy_row(false, sizes[s], NULL, NULL, true);
	}
}

/* ---- several threads -------------------------------------------------------------------------- */

#define PART (2 * MIB)

struct worker {
	pthread_t thread;
	pthread_barrier_t *start;
	bool write;
	unsigned index;
	int64_t took;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	size_t at = w->index * PART;
	int64_t start;

	pthread_barrier_wait(w->start);
	start = wh_now();
	for (int i = 0; i < (w->write ? 16 : 2); i++) {
		if (w->write)
			wh_copy_to(view->copy, wh_view_at(view, memory + at), host + at, PART);
		else
			wh_copy_from(view->copy, host + at, wh_view_at(view, memory + at), PART);
	}
	w->took = wh_now() - start;
	return NULL;
}

static void scaling(bool write, unsigned count)
{
	struct worker w[16];
	pthread_barrier_t start;
	double rounds[ROUNDS];

	for (int r = 0; r < ROUNDS; r++) {
		int64_t longest = 0;

		pthread_barrier_init(&start, NULL, count);
		for (unsigned i = 0; i < count; i++) {
			w[i] = (struct worker){ .start = &start, .write = write, .index = i };
			if (pthread_create(&w[i].thread, NULL, work, &w[i]))
				exit(1);
		}
		for (unsigned i = 0; i < count; i++) {
			pthread_join(w[i].thread, NULL);
			longest = w[i].took > longest ? w[i].took : longest;
		}
		rounds[r] = (double)PART * count * (write ? 16 : 2) / (double)longest;
		pthread_barrier_destroy(&start);
	}
	row("\"what\": \"threads\", \"op\": \"%s\", \"threads\": %u, \"bandwidth_GBps\": %.3f",
	    write ? "write" : "read", count, quantile(rounds, ROUNDS, 0.5));
}

/* ---- recv() ----------------------------------------------------------------------------------- */

#define STREAMS 16
#define PIECE MIB
#define EACH (LARGEST / STREAMS) /* bytes to walk through, for each */

struct stream {
	pthread_t sender, receiver;
	int out, in;
	unsigned char *from, *to;
	size_t bytes, walk;
	pthread_barrier_t *start;
	int64_t took;
};

static void *send_all(void *arg)
{
	struct stream *s = arg;
	size_t sent = 0;

	pthread_barrier_wait(s->start);
	while (sent < s->bytes) {
		ssize_t n = send(s->out, s->from + sent / PIECE * PIECE % s->walk, PIECE, 0);

		if (n <= 0)
			break;
		sent += (size_t)n;
	}
	shutdown(s->out, SHUT_WR);
	return NULL;
}

static void *receive_all(void *arg)
{
	struct stream *s = arg;
	size_t at = 0;
	int64_t start;

	pthread_barrier_wait(s->start);
	start = wh_now();
	while (recv(s->in, s->to + at, PIECE, MSG_WAITALL) > 0)
		at = (at + PIECE) % s->walk;
	wh_copy_issued();
	s->took = wh_now() - start;
	return NULL;
}

/* A connection over loopback. */
static bool connected(int *a, int *b)
{
	struct sockaddr_storage where = { .ss_family = AF_INET };
	socklen_t length = sizeof(where);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	bool good = listener >= 0 && !bind(listener, (struct sockaddr *)&where, 16) &&
		    !listen(listener, 1) &&
		    !getsockname(listener, (struct sockaddr *)&where, &length);

	*a = socket(AF_INET, SOCK_STREAM, 0);
	good = good && !connect(*a, (struct sockaddr *)&where, length);
	*b = good ? accept(listener, NULL, NULL) : -1;
	close(listener);
	return *b >= 0;
}

static double receive(unsigned count, size_t walk, bool window)
{
	static struct stream s[STREAMS];
	pthread_barrier_t start;
	int64_t longest = 1;
	size_t bytes = (quick ? 32 : 512) * MIB / count;

	pthread_barrier_init(&start, NULL, 2 * count);
	for (unsigned i = 0; i < count; i++) {
		s[i] = (struct stream){
			.from = host + i * EACH,
			.to = window ? wh_view_at(view, memory + i * EACH) :
				       host + LARGEST + i * EACH,
			.bytes = bytes,
			.walk = walk,
			.start = &start,
		};
		if (!connected(&s[i].out, &s[i].in) ||
		    pthread_create(&s[i].sender, NULL, send_all, &s[i]) ||
		    pthread_create(&s[i].receiver, NULL, receive_all, &s[i]))
			exit(1);
	}
	for (unsigned i = 0; i < count; i++) {
		pthread_join(s[i].sender, NULL);
		pthread_join(s[i].receiver, NULL);
		close(s[i].in);
		close(s[i].out);
		longest = s[i].took > longest ? s[i].took : longest;
	}
	pthread_barrier_destroy(&start);
	return (double)(bytes * count) / (double)longest;
}

static void receiving(unsigned count, size_t walk)
{
	double window[5], plain[5], ratio[5];

	for (int r = 0; r < 5; r++) {
		window[r] = receive(count, walk, true);
		plain[r] = receive(count, walk, false);
		ratio[r] = window[r] / plain[r];
	}
	row("\"what\": \"recv\", \"streams\": %u, \"size_bytes\": %zu, "
	    "\"working_set_bytes\": %zu, \"bandwidth_GBps\": %.3f, "
	    "\"limit_name\": \"recv into pinned host memory\", \"limit_GBps\": %.3f, "
	    "\"ratio\": %.3f",
	    count, PIECE, count * walk, quantile(window, 5, 0.5), quantile(plain, 5, 0.5),
	    quantile(ratio, 5, 0.5));
}

/* ---- opening ---------------------------------------------------------------------------------- */

static bool open_one(uint64_t address, size_t length, struct wh_view **out)
{
	struct wh_view_request request = { .address = address, .length = length,
					   .order = order, .map = true };

	return CALL(wh_view_open(windows, &request, out));
}

static void opening(size_t length)
{
	double opens[50], again[50], closes[50];
	struct wh_view *a, *b;
	uint64_t address;
	int count = length > 64 * MIB ? 10 : 50;

	if (!CU(cuMemAlloc, &address, length))
		return;
	for (int i = 0; i < count; i++) {
		int64_t t0 = wh_now(), t1, t2, t3;

		if (!open_one(address, length, &a))
			break;
		t1 = wh_now();
		if (!open_one(address, length, &b))
			break;
		t2 = wh_now();
		wh_view_close(b);
		t3 = wh_now();
		wh_view_close(a);
		opens[i] = (double)(t1 - t0) / 1000;
		again[i] = (double)(t2 - t1) / 1000;
		closes[i] = (double)(wh_now() - t3) / 1000;
	}
	row("\"what\": \"open\", \"size_bytes\": %zu, \"open_map_us\": %.1f, "
	    "\"second_open_us\": %.2f, \"close_us\": %.1f, \"samples\": %d",
	    length, quantile(opens, (size_t)count, 0.5), quantile(again, (size_t)count, 0.5),
	    quantile(closes, (size_t)count, 0.5), count);
	CU(cuMemFree, address);
}

/* ---- a flag to the GPU and one back ------------------------------------------------------------ */

#define BOUNCES 20000

/* Waits for 1, 2, 3 ... in one word and answers each in another. It gives up in the end, so that a
 * GPU is not lost to it. */
static const char bounce[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
	".visible .entry bounce(.param .u64 in, .param .u64 out, .param .u32 rounds)\n{\n"
	".reg .u64 %in, %out;\n.reg .u32 %seen, %next, %rounds, %left;\n.reg .pred %p;\n"
	"ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nld.param.u32 %rounds, [rounds];\n"
	"mov.u32 %next, 1;\nmov.u32 %left, 50000000;\n"
	"WAIT:\nsub.u32 %left, %left, 1;\nsetp.eq.u32 %p, %left, 0;\n@%p bra END;\n"
	"ld.volatile.global.u32 %seen, [%in];\nsetp.ne.u32 %p, %seen, %next;\n@%p bra WAIT;\n"
	"st.volatile.global.u32 [%out], %next;\nadd.u32 %next, %next, 1;\n"
	"setp.le.u32 %p, %next, %rounds;\n@%p bra WAIT;\nEND:\nret;\n}\n";

static void tell_by_window(uint32_t *flag, uint32_t value)
{
	wh_copy_to(view->copy, flag, &value, sizeof(value));
}

static void tell_bare(uint32_t *flag, uint32_t value)
{
	*(volatile uint32_t *)flag = value;
	wh_copy_issued();
}

/* Microseconds of a round trip; -1: the GPU does not answer. */
static double bounce_once(CUfunction kernel, CUstream stream, void (*tell)(uint32_t *, uint32_t))
{
	volatile uint32_t *answer = (void *)host;
	uint32_t *flag = wh_view_at(view, memory), rounds = BOUNCES, none = 0;
	uint64_t in = memory, out = (uintptr_t)host; /* pinned memory has one address for all */
	void *parameters[] = { &in, &out, &rounds };
	int64_t start = 0, end = wh_now() + 5 * WH_SECOND;

	*answer = 0;
	wh_copy_to(view->copy, flag, &none, sizeof(none));
	if (!CU(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL))
		return -1;
	for (uint32_t i = 1; i <= BOUNCES; i++) {
		if (i == BOUNCES / 10) /* the first ones wait for the kernel to begin */
			start = wh_now();
		tell(flag, i);
		while (*answer != i) {
			if (wh_now() > end)
				return -1;
		}
	}
	end = wh_now();
	CU(cuStreamSynchronize, stream);
	return (double)(end - start) / 1000 / (BOUNCES - BOUNCES / 10.0 + 1);
}

static void bouncing(void)
{
	double window[ROUNDS], bare[ROUNDS], ratio[ROUNDS];
	CUfunction kernel;
	CUmodule module;
	CUstream stream;

	/* The fake driver has no compiler. */
	if (wh_cuda_image_load(gpu, bounce, "bounce", &module) ||
	    wh_cuda_call(gpu, cuModuleGetFunction, &kernel, module, "bounce")) {
		fprintf(stderr, "no ping-pong: %s\n", wh_error_text());
		return;
	}
	if (!CU(cuStreamCreate, &stream, CUDA_STREAM_NON_BLOCKING))
		return;
	for (int r = 0; r < ROUNDS; r++) {
		window[r] = bounce_once(kernel, stream, tell_by_window);
		bare[r] = bounce_once(kernel, stream, tell_bare);
		if (!CHECK(window[r] > 0 && bare[r] > 0))
			return;
		ratio[r] = window[r] / bare[r];
	}
	row("\"what\": \"ping-pong\", \"size_bytes\": 4, \"round_trip_us\": %.3f, "
	    "\"limit_name\": \"a store and sfence\", \"limit_us\": %.3f, \"ratio\": %.3f",
	    quantile(window, ROUNDS, 0.5), quantile(bare, ROUNDS, 0.5),
	    quantile(ratio, ROUNDS, 0.5));
	CU(cuStreamDestroy, stream);
	CU(cuModuleUnload, module);
}

/* ---- all -------------------------------------------------------------------------------------- */

static void cpu_name(char *out, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[256];

	snprintf(out, size, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
			snprintf(out, size, "%s", strchr(line, ':') + 2);
			out[strcspn(out, "\n\"\\")] = 0;
			break;
		}
	}
	if (f)
		fclose(f);
}

static void environment(void)
{
	struct utsname u;
	char cpu[128], when[32];
	time_t now = time(NULL);

	uname(&u);
	cpu_name(cpu, sizeof(cpu));
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
	printf("{\n  \"schema\": 1,\n  \"environment\": {\n    \"date\": \"%s\",\n"
	       "    \"what\": \"tests/gpu/window-bench: loads and stores through a window, beside the "
	       "driver's copies between pinned memory and the same places\",\n"
	       "    \"kernel\": \"%s\",\n    \"cpu\": \"%s\",\n    \"cores\": %ld,\n"
	       "    \"gpu\": \"%s\",\n    \"cuda_driver_version\": %d,\n    \"nvidia_driver\": \"%s\",\n"
	       "    \"backend\": \"%s\",\n    \"said\": \"%s\",\n    \"mapping\": %d,\n"
	       "    \"put\": \"%s\",\n    \"get\": \"%s\"\n  },\n  \"results\": [",
	       when, u.release, cpu, sysconf(_SC_NPROCESSORS_ONLN), device->name, gpu->version,
	       windows->rm ? wh_rm_version(windows->rm) : "", view->backend->name, view->said,
	       view->mapping, view->copy.put->name, view->copy.get->name);
}

int main(int argc, char **argv)
{
	struct wh_cuda_scope scope;
	void *pinned;

	quick = argc > 1 && !strcmp(argv[1], "--quick");
	if (quick)
		argc--, argv++;
	gpu_open(argc > 1 && *argv[1] ? argv[1] : NULL);
	if (argc > 2)
		order = argv[2];
	if (!CALL(wh_cuda_device_at(gpu, 0, &device)) || !CALL(wh_windows_new(gpu, &windows)) ||
	    !CALL(wh_cuda_enter(gpu, device, &scope)) || !CU(cuMemAlloc, &memory, LARGEST) ||
	    !CU(cuMemHostAlloc, &pinned, 2 * LARGEST, 0) || !open_one(memory, LARGEST, &view))
		return 1;
	host = pinned;
	memset(host, 7, 2 * LARGEST);
	environment();
	copies();
	for (unsigned count = 1; count <= 8; count *= 2) {
		scaling(true, count);
		scaling(false, count);
	}
	for (unsigned count = 1; count <= STREAMS; count *= 4)
		receiving(count, PIECE);
	receiving(STREAMS, EACH);
	bouncing();
	opening(64 * KIB);
	opening(MIB);
	if (!quick)
		opening(1024 * MIB);
	printf("\n  ]\n}\n");
	wh_view_close(view);
	wh_windows_free(windows);
	CU(cuMemFreeHost, pinned);
	CU(cuMemFree, memory);
	wh_cuda_leave(&scope);
	return gpu_close() || gpu_failures;
}
