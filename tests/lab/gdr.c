/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the kernel module share, and their main program. */
#include "gdr.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the GPU's memory ------------------------------------------------------------------------ */

/* One for the process, so that a child must open its own, and opened when it is first needed. */
static int gpu(void)
{
	static int fd = -1;
	static pid_t opener;

	if (fd < 0 || opener != getpid()) {
		fd = open("/dev/lab-gpu", O_RDWR | O_CLOEXEC);
		opener = getpid();
		if (fd < 0)
			perror("/dev/lab-gpu");
	}
	return fd;
}

void gpu_alloc(struct memory *memory, uint64_t size, unsigned flags)
{
	struct lab_gpu_alloc request = { .size = size, .flags = flags };

	if (ioctl(gpu(), LAB_GPU_ALLOC, &request)) {
		perror("LAB_GPU_ALLOC");
		abort();
	}
	memory->address = request.address;
	memory->size = size;
	memory->offset = request.offset;
	memory->flags = flags;
	memory->bytes =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, gpu(), (off_t)request.offset);
	if (memory->bytes == MAP_FAILED) {
		perror("mmap of /dev/lab-gpu");
		abort();
	}
}

unsigned char *gpu_page(const struct memory *memory, uint64_t index)
{
	if (memory->flags & LAB_GPU_SCATTERED)
		index = memory->size / PAGE - 1 - index;
	return memory->bytes + index * PAGE;
}

int gpu_free(const struct memory *memory)
{
	munmap(memory->bytes, memory->size);
	return ioctl(gpu(), LAB_GPU_FREE, &memory->address) ? -errno : 0;
}

struct lab_gpu_state gpu_state(void)
{
	struct lab_gpu_state state;

	if (ioctl(gpu(), LAB_GPU_STATE, &state))
		abort();
	return state;
}

static bool gpu_is_old(void)
{
	return !access("/sys/module/lab_gpu_old", F_OK);
}

void gpu_order(const char *name, int value)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/module/%s/parameters/%s",
		 gpu_is_old() ? "lab_gpu_old" : "lab_gpu", name);
	file = fopen(path, "w");
	if (!file || fprintf(file, "%d\n", value) < 0 || fclose(file)) {
		perror(path);
		abort();
	}
}

/* ---- /dev/gdrdrv ----------------------------------------------------------------------------- */

int gdr_open(void)
{
	int fd = open("/dev/gdrdrv", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		perror("/dev/gdrdrv");
	return fd;
}

int gdr_ioctl(int fd, unsigned long number, void *arguments)
{
	return ioctl(fd, number, arguments) ? -errno : 0;
}

int gdr_pin(int fd, uint64_t address, uint64_t size, uint64_t *handle)
{
	struct pin pin = { .addr = address, .size = size };
	int error = gdr_ioctl(fd, IOC_PIN, &pin);

	if (!error)
		*handle = pin.handle;
	return error;
}

int gdr_pin_v2(int fd, uint64_t address, uint64_t size, unsigned flags, uint64_t *handle)
{
	struct pin_v2 pin = { .addr = address, .size = size, .flags = flags };
	int error = gdr_ioctl(fd, IOC_PIN_V2, &pin);

	if (!error)
		*handle = pin.handle;
	return error;
}

int gdr_unpin(int fd, uint64_t handle)
{
	return gdr_ioctl(fd, IOC_UNPIN, &handle);
}

int gdr_request(int fd, uint64_t handle, unsigned type)
{
	return gdr_ioctl(fd, IOC_REQUEST, &(struct request){ handle, type });
}

unsigned gdr_type(int fd, uint64_t handle)
{
	struct info_v2 info = { .handle = handle };

	ok(gdr_ioctl(fd, IOC_INFO_V2, &info));
	return info.mapping_type;
}

unsigned gdr_flag(int fd, uint64_t handle)
{
	struct callback_flag flag = { .handle = handle, .flag = 77 };

	ok(gdr_ioctl(fd, IOC_CALLBACK_FLAG, &flag));
	return flag.flag;
}

int gdr_map(int fd, uint64_t handle, uint64_t size, void *window)
{
	void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			     (off_t)(handle * (uint64_t)getpagesize()));

	if (address == MAP_FAILED)
		return -errno;
	memcpy(window, &address, sizeof(address));
	return 0;
}

static bool proc_has(const char *name, char *text, size_t size)
{
	char path[100];
	FILE *file;
	size_t length;

	snprintf(path, sizeof(path), "/proc/driver/gdrdrv/%s", name);
	file = fopen(path, "r");
	if (!file)
		return false;
	length = fread(text, 1, size - 1, file);
	text[length] = '\0';
	return !fclose(file);
}

long gdr_refcount(void)
{
	char text[100];

	return proc_has("nv_get_pages_refcount", text, sizeof(text)) ? atol(text) : -1;
}

bool gdr_is_persistent(void)
{
	char text[1000];

	return proc_has("params", text, sizeof(text)) &&
	       strstr(text, "Use persistent mapping: yes\n");
}

/* ---- the rest -------------------------------------------------------------------------------- */

static sigjmp_buf fault;

static void on_fault(int number)
{
	siglongjmp(fault, number);
}

static int try(volatile unsigned char *address, bool writing)
{
	struct sigaction action = { .sa_handler = on_fault }, bus, segv;
	int number;

	sigaction(SIGBUS, &action, &bus);
	sigaction(SIGSEGV, &action, &segv);
	number = sigsetjmp(fault, 1);
	if (!number) {
		if (writing)
			*address = 1;
		else
			(void)*address;
	}
	sigaction(SIGBUS, &bus, NULL);
	sigaction(SIGSEGV, &segv, NULL);
	return number;
}

int try_read(const volatile void *address)
{
	return try((volatile unsigned char *)address, false);
}

int try_write(volatile void *address)
{
	return try(address, true);
}

static uint64_t mixed(uint64_t number)
{
	number = (number ^ number >> 31) * 0x9E3779B97F4A7C15;
	return number ^ number >> 29;
}

void fill(volatile void *to, size_t length, unsigned seed)
{
	volatile uint64_t *words = to;
	size_t i;

	for (i = 0; i < length / 8; i++)
		words[i] = mixed(((uint64_t)seed << 32) + i);
}

bool is_filled(const volatile void *from, size_t length, unsigned seed)
{
	const volatile uint64_t *words = from;
	size_t i;

	for (i = 0; i < length / 8; i++) {
		if (words[i] != mixed(((uint64_t)seed << 32) + i))
			return false;
	}
	return true;
}

void in_child(void (*function)(void *), void *argument)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (!child) {
		function(argument);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

void child_failed(const char *file, int line, const char *condition)
{
	fprintf(stderr, "%s:%d: in a child: not so: %s (errno %d)\n", file, line, condition, errno);
	_exit(1);
}

int quiet(void **state)
{
	static const char *const orders[] = {
		"cacheable",    "missing",  "skew",    "aperture", "fail_get", "fail_put",
		"refuse_flags", "delay_ms", "late_ms", "free_ms",  "early",    "early_errno"
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(orders) / sizeof(*orders); i++)
		gpu_order(orders[i], 0);
	gpu_order("fail_errno", ENOMEM);
	gpu_order("size_type", 1);
	gpu_order("version", gpu_is_old() ? 0x10002 : 0x20000);
	return 0;
}

int nothing_left(void **state)
{
	struct lab_gpu_state gpu_now = gpu_state();
	long count = gdr_refcount();

	(void)state;
	if (count || gpu_now.tables || gpu_now.allocations)
		print_error("left behind: refcount %ld, %u tables, %u allocations\n", count,
			    gpu_now.tables, gpu_now.allocations);
	return count || gpu_now.tables || gpu_now.allocations ? -1 : 0;
}

/* For the script that called: go on when it says so. */
static int tell_and_wait(const char *text)
{
	char line[16];

	puts(text);
	return !fgets(line, sizeof(line), stdin);
}

/* A driver that does not take pages back: they stay counted until the memory is freed. */
static int lost(void)
{
	struct memory memory;
	unsigned char *bytes;
	uint64_t handle;
	int fd = gdr_open();

	gpu_alloc(&memory, PAGE, 0);
	if (gdr_pin(fd, memory.address, PAGE, &handle) || gdr_map(fd, handle, PAGE, &bytes))
		return 1;
	*(volatile unsigned char *)bytes = 1;
	gpu_order("fail_put", 1);
	if (gdr_unpin(fd, handle) || try_read(bytes) != SIGBUS || gdr_refcount() != 1 || close(fd))
		return 1;
	munmap(bytes, PAGE);
	return tell_and_wait("lost") || gpu_free(&memory) || nothing_left(NULL);
}

static void *free_in_thread(void *memory)
{
	return gpu_free(memory) ? "cannot free" : NULL;
}

/* A callback that still runs when the last descriptor is closed: it sleeps in its call of the
 * driver. */
static int late(void)
{
	struct memory memory;
	pthread_t thread;
	uint64_t handle;
	void *trouble;
	int fd = gdr_open();

	gpu_alloc(&memory, PAGE, 0);
	gpu_order("free_ms", 2000);
	if (gdr_pin(fd, memory.address, PAGE, &handle) ||
	    pthread_create(&thread, NULL, free_in_thread, &memory))
		return 1;
	while (!gdr_flag(fd, handle))
		usleep(1000);
	if (close(fd))
		return 1;
	puts("closed");
	return pthread_join(thread, &trouble) || trouble;
}

static int version(void)
{
	struct version version;

	if (gdr_ioctl(gdr_open(), IOC_VERSION, &version))
		return 1;
	printf("%u.%u\n", version.driver >> 16, version.driver & 0xffff);
	return 0;
}

/* The memory at the start of the BAR, whose bytes the machine outside has written, and reads when
 * the lab is gone. */
static int host(void)
{
	volatile unsigned char *window;
	struct memory memory;
	uint64_t handle;
	int fd = gdr_open();

	gpu_alloc(&memory, 4 * PAGE, 0);
	if (memory.offset || gdr_pin(fd, memory.address, memory.size, &handle) ||
	    gdr_map(fd, handle, memory.size, &window))
		return 1;
	if (!is_filled(window, PAGE, 1)) {
		fputs("what was written outside is not what a window shows\n", stderr);
		return 1;
	}
	fill(window + PAGE, 3 * PAGE, 2);
	return munmap((void *)window, memory.size) || close(fd) || gpu_free(&memory);
}

/* For the outside: write (or check) the first page, check the others. */
static int outside(const char *path, bool before)
{
	int fd = open(path, O_RDWR);
	unsigned char *bytes;

	if (fd < 0)
		return 1;
	bytes = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (bytes == MAP_FAILED)
		return 1;
	if (before)
		fill(bytes, PAGE, 1);
	else if (!is_filled(bytes, PAGE, 1) || !is_filled(bytes + PAGE, 3 * PAGE, 2))
		return 1;
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	double seconds = argc > 2 ? atof(argv[2]) : 10;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "revocable"))
		return !!(test_ioctls() + test_windows() + test_revoked() + test_processes() +
			  test_faults());
	if (!strcmp(what, "persistent"))
		return !!(test_ioctls() + test_windows() + test_persistent() + test_processes() +
			  test_faults() + test_cacheable());
	if (!strcmp(what, "allocations"))
		return test_allocations();
	if (!strcmp(what, "cuda"))
		return argc > 2 ? test_cuda(argv[2]) : 64;
	if (!strcmp(what, "stress"))
		return stress(seconds);
	if (!strcmp(what, "flags"))
		return flags(seconds);
	if (!strcmp(what, "fuzz"))
		return fuzz(seconds);
	if (!strcmp(what, "measure"))
		return measure();
	if (!strcmp(what, "host"))
		return host();
	if (!strcmp(what, "lost"))
		return lost();
	if (!strcmp(what, "late"))
		return late();
	if (!strcmp(what, "version"))
		return version();
	if (!strcmp(what, "limits"))
		return test_limits();
	if (!strcmp(what, "after-exec")) /* a test's second program */
		return argc > 3 ? after_exec(atoi(argv[2]), strtoull(argv[3], NULL, 10)) : 64;
	if (!strcmp(what, "outside-before") || !strcmp(what, "outside-after"))
		return argc > 2 ? outside(argv[2], !strcmp(what, "outside-before")) : 64;
	fputs("usage: lab-gdr "
	      "revocable|persistent|allocations|limits|host|lost|late|version|measure|\n"
	      "       cuda LIBCUDA|stress SECONDS|flags SECONDS|fuzz SECONDS|outside-before FILE|\n"
	      "       outside-after FILE\n",
	      stderr);
	return 64;
}
