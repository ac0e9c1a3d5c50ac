/* SPDX-License-Identifier: Apache-2.0 */
/* /dev/gdrdrv as its interface is documented, in a test's own words and numbers, and what the tests
 * share. They run in the lab, on the memory of /dev/lab-gpu. */
#ifndef TESTS_LAB_GDR_H
#define TESTS_LAB_GDR_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "provider/lab_gpu.h"

#define IOC_PIN 0xC028DA01u
#define IOC_UNPIN 0xC008DA02u
#define IOC_CALLBACK_FLAG 0xC008DA03u
#define IOC_INFO 0xC008DA04u
#define IOC_INFO_V2 0xC008DA05u
#define IOC_ATTR 0xC008DA06u
#define IOC_PIN_V2 0xC020DA07u
#define IOC_REQUEST 0xC008DA08u
#define IOC_VERSION 0xC008DAFFu

enum { NONE, WC, CACHING, DEVICE };
enum { PERSISTENT = 1, FORCE_PCIE };
enum { FORCE_PCIE_FLAG = 1 };

struct pin {
	uint64_t addr, size, token;
	uint32_t va_space;
	uint64_t handle;
};

struct pin_v2 {
	uint64_t addr, size;
	uint32_t flags;
	uint64_t handle;
};

struct callback_flag {
	uint64_t handle;
	uint32_t flag;
};

struct info {
	uint64_t handle, va, mapped_size;
	uint32_t page_size, tsc_khz;
	uint64_t tm_cycles;
	uint32_t mapped, wc;
};

struct info_v2 {
	uint64_t handle, va, mapped_size;
	uint32_t page_size, tsc_khz;
	uint64_t tm_cycles;
	uint32_t mapping_type;
};

struct attribute {
	uint32_t attribute, value;
};

struct request {
	uint64_t handle;
	uint32_t mapping_type;
};

struct version {
	uint32_t driver, minimum_library;
};

_Static_assert(sizeof(struct pin) == 40 && offsetof(struct pin, token) == 16 &&
		       offsetof(struct pin, va_space) == 24 && offsetof(struct pin, handle) == 32,
	       "PIN");
_Static_assert(sizeof(struct pin_v2) == 32 && offsetof(struct pin_v2, flags) == 16 &&
		       offsetof(struct pin_v2, handle) == 24,
	       "PIN_V2");
_Static_assert(sizeof(struct callback_flag) == 16 && offsetof(struct callback_flag, flag) == 8,
	       "CB_FLAG");
_Static_assert(sizeof(struct info) == 48 && offsetof(struct info, page_size) == 24 &&
		       offsetof(struct info, tsc_khz) == 28 &&
		       offsetof(struct info, tm_cycles) == 32 &&
		       offsetof(struct info, mapped) == 40 && offsetof(struct info, wc) == 44,
	       "INFO");
_Static_assert(sizeof(struct info_v2) == 48 && offsetof(struct info_v2, mapping_type) == 40,
	       "INFO_V2");
_Static_assert(sizeof(struct attribute) == 8, "ATTR");
_Static_assert(sizeof(struct request) == 16 && offsetof(struct request, mapping_type) == 8,
	       "REQ_MAPPING_TYPE");
_Static_assert(sizeof(struct version) == 8, "VERSION");

#define KIB ((uint64_t)1024)
#define PAGE (64 * KIB) /* of the GPU */
#define ok(call) assert_int_equal(call, 0)
/* Each of the calls below returns 0 or -errno. */
#define refused(error, call) assert_int_equal(call, -(error))

/* ---- the GPU's memory */

struct memory {
	uint64_t address, size, offset;
	unsigned flags;
	unsigned char *bytes; /* its stretch of the BAR, mapped plainly */
};

void gpu_alloc(struct memory *memory, uint64_t size, unsigned flags);
/* Where in the BAR a page of the memory is. */
unsigned char *gpu_page(const struct memory *memory, uint64_t index);
int gpu_free(const struct memory *memory);
struct lab_gpu_state gpu_state(void);
/* A parameter of the provider: what is to go wrong. */
void gpu_order(const char *name, int value);

/* ---- /dev/gdrdrv */

int gdr_open(void);
int gdr_ioctl(int fd, unsigned long number, void *arguments);
int gdr_pin(int fd, uint64_t address, uint64_t size, uint64_t *handle);
int gdr_pin_v2(int fd, uint64_t address, uint64_t size, unsigned flags, uint64_t *handle);
int gdr_unpin(int fd, uint64_t handle);
int gdr_request(int fd, uint64_t handle, unsigned type);
/* The type a handle is mapped as; fails the test on an error. */
unsigned gdr_type(int fd, uint64_t handle);
unsigned gdr_flag(int fd, uint64_t handle);
int gdr_map(int fd, uint64_t handle, uint64_t size, void *window);
/* Page tables that the driver says it holds. */
long gdr_refcount(void);
bool gdr_is_persistent(void);

/* ---- the rest */

/* The signal that reading or writing a byte ends in; 0 if it does not. */
int try_read(const volatile void *address);
int try_write(volatile void *address);
/* Bytes that depend on their place. */
void fill(volatile void *to, size_t length, unsigned seed);
bool is_filled(const volatile void *from, size_t length, unsigned seed);
/* Run it in a child, which is to end with _exit(0). */
void in_child(void (*function)(void *), void *argument);
/* In a child, where cmocka's assertions have nobody to report to. */
#define child_check(condition)                                                                     \
	do {                                                                                       \
		if (!(condition))                                                                  \
			child_failed(__FILE__, __LINE__, #condition);                              \
	} while (0)
_Noreturn void child_failed(const char *file, int line, const char *condition);

/* Nothing was left behind. The teardown of every test. */
int nothing_left(void **state);
int quiet(void **state);
#define gdr_test(function) cmocka_unit_test_setup_teardown(function, quiet, nothing_left)

int test_ioctls(void);
int test_windows(void);
int test_revoked(void);
int test_persistent(void);
int test_processes(void);
int test_faults(void);
int test_cacheable(void);
int test_allocations(void);
int test_limits(void);
int test_cuda(const char *path);
int stress(double seconds);
int flags(double seconds);
int fuzz(double seconds);
int measure(void);
int after_exec(int fd, uint64_t handle);

#endif
