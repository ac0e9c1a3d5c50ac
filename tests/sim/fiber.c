/* SPDX-License-Identifier: Apache-2.0 */
/* Switching between threads of the world: their stacks, and the variables that each has of its own.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "world.h"

#define STACK (1u << 20)
#define KEPT 64 /* stacks of ended threads, for new ones */

struct fiber *sim_current;

static void *scheduler_top, *scheduler_fake;
static const void *scheduler_bottom;
static size_t scheduler_size;
static char *tls_at, *tls_first;
static size_t tls_size;
static void *kept[KEPT];
static int kept_count;

/* The address sanitizer wants to know which stack is in use. These are there only with it. */
#pragma weak __sanitizer_start_switch_fiber
#pragma weak __sanitizer_finish_switch_fiber
#pragma weak __sanitizer_print_stack_trace
#pragma weak __asan_unpoison_memory_region
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size);
void __sanitizer_print_stack_trace(void);
void __asan_unpoison_memory_region(void const volatile *address, size_t size);

static void sanitizer_leave(void **save, const void *bottom, size_t size)
{
	if (__sanitizer_start_switch_fiber)
		__sanitizer_start_switch_fiber(save, bottom, size);
}

static void sanitizer_arrive(void *save, const void **bottom, size_t *size)
{
	if (__sanitizer_finish_switch_fiber)
		__sanitizer_finish_switch_fiber(save, bottom, size);
}

void fiber_print_stack(void)
{
	void *frames[48];

	if (__sanitizer_print_stack_trace)
		__sanitizer_print_stack_trace();
	else
		backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
}

/* Without system calls, which swapcontext() makes, and without its interceptor of the address
 * sanitizer, which clears the shadow of the whole stack. */
void sim_switch(void **save, void *to);
/* x86_64; meson.build leaves the simulation out elsewhere. */
__asm__(".text\n.globl sim_switch\n.hidden sim_switch\n.type sim_switch,@function\nsim_switch:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
	".size sim_switch,.-sim_switch\n");
#define SAVED 6

static int find_tls(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS) {
			tls_at = info->dlpi_tls_data;
			tls_size = info->dlpi_phdr[i].p_memsz;
		}
	return 1; /* the program itself comes first */
}

void fiber_setup(void)
{
	dl_iterate_phdr(find_tls, NULL);
	tls_first = malloc(tls_size + 1);
	if (tls_size)
		memcpy(tls_first, tls_at, tls_size);
}

static void fiber_main(void)
{
	sanitizer_arrive(NULL, &scheduler_bottom, &scheduler_size);
	sim_current->result = sim_current->run(sim_current->arg);
	sim_current->done = true;
	sanitizer_leave(NULL, scheduler_bottom, scheduler_size);
	sim_switch(&sim_current->top, scheduler_top);
	abort();
}

/* Give a new fiber its stack and variables. */
void fiber_prepare(struct fiber *fiber)
{
	void **top;

	fiber->stack = kept_count ? kept[--kept_count] :
				    mmap(NULL, STACK, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	fiber->tls = malloc(tls_size + 1);
	if (fiber->stack == MAP_FAILED || !fiber->tls)
		sim_die("no memory for a stack");
	if (tls_size)
		memcpy(fiber->tls, tls_first, tls_size);
	top = (void **)((char *)fiber->stack + STACK - 64);
	*--top = NULL; /* where fiber_main() would return to */
	*--top = (void *)fiber_main;
	for (int i = 0; i < SAVED; i++)
		*--top = NULL;
	fiber->top = top;
}

void fiber_end(struct fiber *fiber)
{
	if (__asan_unpoison_memory_region)
		__asan_unpoison_memory_region(fiber->stack, STACK);
	if (kept_count < KEPT)
		kept[kept_count++] = fiber->stack;
	else
		munmap(fiber->stack, STACK);
	free(fiber->tls);
	fiber->stack = fiber->tls = NULL;
}

/* From the scheduler into a fiber, until it leaves. */
void fiber_enter(struct fiber *fiber)
{
	sim_current = fiber;
	if (tls_size)
		memcpy(tls_at, fiber->tls, tls_size);
	errno = fiber->saved_errno;
	sanitizer_leave(&scheduler_fake, fiber->stack, STACK);
	sim_switch(&scheduler_top, fiber->top);
	sanitizer_arrive(scheduler_fake, NULL, NULL);
	fiber->saved_errno = errno;
	if (tls_size)
		memcpy(fiber->tls, tls_at, tls_size);
	sim_current = NULL;
}

/* Back to the scheduler. */
void fiber_leave(struct fiber *fiber)
{
	sanitizer_leave(&fiber->fake, scheduler_bottom, scheduler_size);
	sim_switch(&fiber->top, scheduler_top);
	sanitizer_arrive(fiber->fake, &scheduler_bottom, &scheduler_size);
}
