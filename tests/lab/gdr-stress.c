/* SPDX-License-Identifier: Apache-2.0 */
/* Many processes and threads at random, ioctls at random, and what a pin costs. */
#include "gdr.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 8, THREADS = 8, SLOTS = 16, BUFFERS = 4, BUFFER_PAGES = 8 };

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static unsigned draw(uint64_t *seed, unsigned below)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return (unsigned)(*seed >> 32) % below;
}

/* What the threads of a process share, without a lock on purpose: a thread uses handles and windows
 * that another one is just ending. */
static struct shared {
	int fd, gpu, memfd;
	double end;
	uint64_t address[BUFFERS];
	volatile uint64_t handle[SLOTS];
	unsigned char *volatile window[SLOTS];
} shared;

static void renew_buffer(unsigned i)
{
	struct lab_gpu_alloc request = { .size = BUFFER_PAGES * PAGE, .flags = i % 2 };
	uint64_t old = __atomic_exchange_n(&shared.address[i], 0, __ATOMIC_SEQ_CST);

	if (old)
		ioctl(shared.gpu, LAB_GPU_FREE, &old);
	if (!ioctl(shared.gpu, LAB_GPU_ALLOC, &request))
		shared.address[i] = request.address;
}

static void step(uint64_t *seed)
{
	unsigned slot = draw(seed, SLOTS), page = draw(seed, BUFFER_PAGES);
	uint64_t handle = shared.handle[slot], at = page * PAGE;
	unsigned char *window = shared.window[slot];
	void *mapped;

	switch (draw(seed, 12)) {
	case 0:
	case 1:
		if (!gdr_pin(shared.fd, shared.address[draw(seed, BUFFERS)] + at,
			     (BUFFER_PAGES - page) * PAGE, &handle))
			shared.handle[slot] = handle;
		break;
	case 2:
	case 3:
		if (!gdr_map(shared.fd, handle, PAGE, &mapped))
			shared.window[slot] = mapped;
		break;
	case 4:
	case 5:
		/* By a system call, to which a window that is gone is an error and no signal. */
		if (window && pwrite(shared.memfd, window, 512, 0) < 0 && errno != EFAULT)
			abort();
		break;
	case 6:
	case 7:
		if (window && pread(shared.memfd, window + 1024, 512, 0) < 0 && errno != EFAULT)
			abort();
		break;
	case 8:
		if (window) {
			shared.window[slot] = NULL;
			munmap(window, PAGE);
		}
		break;
	case 9:
		gdr_unpin(shared.fd, handle);
		break;
	case 10:
		gdr_ioctl(shared.fd, IOC_INFO_V2, &(struct info_v2){ .handle = handle });
		gdr_ioctl(shared.fd, IOC_CALLBACK_FLAG,
			  &(struct callback_flag){ .handle = handle });
		gdr_request(shared.fd, handle, draw(seed, 4));
		break;
	case 11:
		if (!draw(seed, 4))
			renew_buffer(draw(seed, BUFFERS));
		break;
	}
}

static void *stress_thread(void *argument)
{
	uint64_t seed = (uint64_t)(uintptr_t)argument * 0x9E3779B97F4A7C15 + (uint64_t)getpid();

	while (now() < shared.end)
		step(&seed);
	return NULL;
}

/* Ends in the middle of things, by itself or by its parent's SIGKILL. */
static _Noreturn void stress_process(double end)
{
	pthread_t threads[THREADS];
	uintptr_t i;
	pid_t child;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memset(&shared, 0, sizeof(shared));
	shared.fd = gdr_open();
	shared.gpu = open("/dev/lab-gpu", O_RDWR);
	shared.memfd = memfd_create("bytes", 0);
	shared.end = end;
	if (shared.fd < 0 || shared.gpu < 0 || ftruncate(shared.memfd, 4096))
		_exit(1);
	for (i = 0; i < BUFFERS; i++)
		renew_buffer((unsigned)i);
	for (i = 0; i < THREADS; i++) {
		if (pthread_create(&threads[i], NULL, stress_thread, (void *)(i + 1)))
			_exit(1);
	}
	child = fork(); /* while all of that is going on */
	if (!child) {
		usleep(20000);
		_exit(0);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	waitpid(child, NULL, 0);
	_exit(0);
}

int stress(double seconds)
{
	double end = now() + seconds;
	pid_t children[PROCESSES] = { 0 };
	uint64_t seed = 0x123456789;
	int status, failed = 0, rounds = 0;
	unsigned i;
	pid_t pid;

	/* A process that is killed leaves its child to us, which still has all that there was. */
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		return 1;
	while (now() < end) {
		for (i = 0; i < PROCESSES; i++) {
			if (children[i])
				continue;
			children[i] = fork();
			if (!children[i])
				stress_process(now() + 0.1 + draw(&seed, 1000) / 500.0);
			rounds++;
			seed += (uint64_t)children[i];
		}
		usleep(50000);
		if (!draw(&seed, 4))
			kill(children[draw(&seed, PROCESSES)], SIGKILL);
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
			failed |= !(WIFEXITED(status) && !WEXITSTATUS(status)) &&
				  !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
			for (i = 0; i < PROCESSES; i++) {
				if (children[i] == pid)
					children[i] = 0;
			}
		}
	}
	for (i = 0; i < PROCESSES; i++) {
		if (children[i]) {
			kill(children[i], SIGKILL);
			waitpid(children[i], &status, 0);
		}
	}
	while (waitpid(-1, &status, 0) > 0)
		;
	printf("%d processes, %u calls of the driver, %u callbacks\n", rounds, gpu_state().calls,
	       gpu_state().callbacks);
	return failed || nothing_left(NULL);
}

/* ---- callbacks against who asks for them ----------------------------------------------------- */

struct freeing {
	sem_t begin;
	struct memory memory;
	volatile bool over;
};

static void *free_each(void *argument)
{
	struct freeing *freeing = argument;

	while (!sem_wait(&freeing->begin) && !freeing->over) {
		if (gpu_free(&freeing->memory))
			abort();
	}
	return NULL;
}

/* A thread frees memory while another asks whether it has: for a kernel that looks for data races.
 */
int flags(double seconds)
{
	static struct freeing freeing;
	double end = now() + seconds;
	int fd = gdr_open(), rounds = 0;
	pthread_t thread;
	uint64_t handle;

	if (fd < 0 || sem_init(&freeing.begin, 0, 0) ||
	    pthread_create(&thread, NULL, free_each, &freeing))
		return 1;
	for (; now() < end; rounds++) {
		gpu_alloc(&freeing.memory, PAGE, 0);
		if (gdr_pin(fd, freeing.memory.address, PAGE, &handle))
			return 1;
		sem_post(&freeing.begin);
		while (!gdr_flag(fd, handle))
			;
		if (gdr_unpin(fd, handle))
			return 1;
	}
	freeing.over = true;
	sem_post(&freeing.begin);
	pthread_join(thread, NULL);
	close(fd);
	printf("%d rounds\n", rounds);
	return nothing_left(NULL);
}

/* ---- ioctls at random ------------------------------------------------------------------------ */

int fuzz(double seconds)
{
	static const unsigned numbers[] = { IOC_PIN,    IOC_UNPIN,   IOC_CALLBACK_FLAG,
					    IOC_INFO,   IOC_INFO_V2, IOC_ATTR,
					    IOC_PIN_V2, IOC_REQUEST, IOC_VERSION };
	uint64_t seed = 0x987654321, interesting[12], *arguments, calls = 0, good = 0;
	double end = now() + seconds;
	struct memory memory;
	unsigned char *pages;
	unsigned i, number;
	/* Some windows stay for a while; they hold their files, and those what was pinned. */
	void *window, *left[16] = { NULL }, *pointer;
	int fd = gdr_open();

	/* The arguments' page, one that can be read only, one that is not there. */
	pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_READ) ||
	    munmap(pages + 8192, 4096))
		return 1;
	gpu_alloc(&memory, 4 * PAGE, LAB_GPU_SCATTERED);
	while (now() < end) {
		interesting[0] = 0;
		interesting[1] = memory.address;
		interesting[2] = memory.address + draw(&seed, 4 * (unsigned)PAGE);
		interesting[3] = draw(&seed, 5 * (unsigned)PAGE);
		interesting[4] = UINT64_MAX - draw(&seed, (unsigned)PAGE);
		interesting[5] = seed;
		interesting[6] = draw(&seed, 5);
		interesting[7] = 1ull << draw(&seed, 64);
		arguments = (uint64_t *)pages;
		interesting[8] = arguments[4]; /* handles, perhaps */
		interesting[9] = arguments[3];
		interesting[10] = arguments[0];
		interesting[11] = arguments[4] + 1;
		for (i = 0; i < 6; i++) {
			if (draw(&seed, 3))
				arguments[i] = interesting[draw(&seed, 12)];
		}
		pointer = draw(&seed, 16) ? pages :
					    pages + 4096 * draw(&seed, 4) - 8 * draw(&seed, 5);
		number = draw(&seed, 16) ? numbers[draw(&seed, 9)] :
			 draw(&seed, 2)  ? (unsigned)seed :
					   (unsigned)seed << 16 | 0xDA00 | (seed & 15);
		good += !gdr_ioctl(fd, number, pointer);
		if (!draw(&seed, 8) &&
		    !gdr_map(fd, interesting[8 + draw(&seed, 4)] % (1ull << 51), 4096, &window)) {
			try_write(window);
			i = draw(&seed, 32);
			if (i < 16) {
				pointer = left[i];
				left[i] = window;
				window = pointer;
			}
			if (window)
				munmap(window, 4096);
		}
		if (!(++calls % 2000)) { /* not too many pins at once */
			close(fd);
			fd = gdr_open();
		}
		if (!(calls % 5000)) {
			gpu_free(&memory);
			gpu_alloc(&memory, 4 * PAGE, LAB_GPU_SCATTERED);
		}
	}
	printf("%lu calls, %lu of them done\n", (unsigned long)calls, (unsigned long)good);
	return 0;
}

/* ---- what it costs --------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

enum { ROUNDS = 21 };

static double least(const double *values)
{
	double found = values[0];

	for (int i = 1; i < ROUNDS; i++)
		found = values[i] < found ? values[i] : found;
	return found;
}

/* Seconds that each of `times` pins takes; with a window that is written to, if wanted. */
static double pin_time(int fd, uint64_t address, int times, bool window)
{
	double begun = now();
	unsigned char *bytes;
	uint64_t handle;
	int i;

	for (i = 0; i < times; i++) {
		if (gdr_pin(fd, address, PAGE, &handle))
			abort();
		if (window) {
			if (gdr_map(fd, handle, PAGE, &bytes))
				abort();
			*(volatile unsigned char *)bytes = 1;
			munmap(bytes, PAGE);
		}
		if (gdr_unpin(fd, handle))
			abort();
	}
	return (now() - begun) / times;
}

/* The provider's own get and put of 64 KiB against pin and unpin, without and with a window. What
 * the module adds is compared with what the real driver's get and put take: 1.35 and 0.68 ms are
 * published for them. */
static bool measure_pins(int fd, int gpu, uint64_t address)
{
	static double bare[ROUNDS], pinned[ROUNDS], whole[ROUNDS];
	struct lab_gpu_alloc request = { .address = address, .flags = 300 };
	double begun, added;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		begun = now();
		if (ioctl(gpu, LAB_GPU_LOOP, &request))
			abort();
		bare[round] = (now() - begun) / request.flags;
		pinned[round] = pin_time(fd, address, (int)request.flags, false);
		whole[round] = pin_time(fd, address, (int)request.flags, true);
	}
	/* The least of the rounds: other work on the machine only adds to it. */
	added = least(whole) - least(bare);
	printf("64 KiB, get and put by the provider: %.1f us; pin and unpin: %.1f us; with map, a "
	       "write and "
	       "unmap: %.1f us; added: %.1f us, %.1f %% of 2,030\n",
	       least(bare) * 1e6, least(pinned) * 1e6, least(whole) * 1e6, added * 1e6,
	       added / 2030e-6 * 100);
	return added < 0.1 * 2030e-6;
}

/* Seconds that writing 64 KiB takes. */
static double copy_time(unsigned char *to, const unsigned char *from)
{
	double begun = now();
	int i;

	for (i = 0; i < 64; i++)
		memcpy(to, from, PAGE);
	return (now() - begun) / 64;
}

/* Writing through a window, against the BAR mapped plainly: the best of the rounds, since an
 * emulator among other work is only ever disturbed, and no more than its table of pages has room
 * for. */
static bool measure_window(int fd, uint64_t handle, unsigned char *bar)
{
	static double plain[ROUNDS], through[ROUNDS];
	static unsigned char from[PAGE];
	unsigned char *window;
	int round;

	if (gdr_map(fd, handle, sizeof(from), &window))
		return false;
	for (round = 0; round < ROUNDS; round++) {
		plain[round] = copy_time(bar, from);
		through[round] = copy_time(window, from);
	}
	munmap(window, sizeof(from));
	qsort(plain, ROUNDS, sizeof(*plain), by_value);
	qsort(through, ROUNDS, sizeof(*through), by_value);
	printf("64 KiB, written to the BAR mapped plainly: %.2f GB/s; through a window: %.2f "
	       "GB/s\n",
	       sizeof(from) / plain[0] / 1e9, sizeof(from) / through[0] / 1e9);
	return through[0] < 1.25 * plain[0];
}

/* Pages whose addresses share a place in that table evict each other in every round: a window that
 * lies so is tried elsewhere. */
static bool measure_copies(int fd, const struct lab_gpu_alloc *memory, unsigned char *bar)
{
	enum { PLACES = 4 };
	size_t aside = 5 * PAGE / 2;
	void *taken[PLACES];
	uint64_t handle;
	bool good = false;
	int tried = 0;

	if (gdr_pin(fd, memory->address, PAGE, &handle))
		return false;
	for (; tried < PLACES && !good; tried++) {
		good = measure_window(fd, handle, bar);
		taken[tried] = mmap(NULL, aside, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	while (tried--)
		if (taken[tried] != MAP_FAILED)
			munmap(taken[tried], aside);
	return good;
}

int measure(void)
{
	struct lab_gpu_alloc first = { .size = 4 * PAGE }, request = { .size = 16 * PAGE };
	int fd = gdr_open(), gpu = open("/dev/lab-gpu", O_RDWR), failed;
	unsigned char *bar;

	/* The first pages stay as they are: what host() has written is looked at outside. */
	if (fd < 0 || gpu < 0 || ioctl(gpu, LAB_GPU_ALLOC, &first) ||
	    ioctl(gpu, LAB_GPU_ALLOC, &request))
		return 1;
	bar = mmap(NULL, request.size, PROT_READ | PROT_WRITE, MAP_SHARED, gpu,
		   (off_t)request.offset);
	if (bar == MAP_FAILED)
		return 1;
	failed = !measure_pins(fd, gpu, request.address) + !measure_copies(fd, &request, bar);
	munmap(bar, request.size);
	close(fd);
	close(gpu);
	return failed || nothing_left(NULL);
}
