/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory on a PCI BAR, for the lab (tests/lab): kernel modules can pin it by its device
 * address, and the windows that they map show the bytes that this driver copies. */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../lab/provider/lab_gpu.h"
#include "fake.h"

int fake_bar_map(uint64_t base, size_t size, bool at_base, int *fd, char **alias)
{
	struct lab_gpu_alloc request = { .address = base, .size = size };

	*fd = open(fake_settings()->bar, O_RDWR | O_CLOEXEC);
	if (*fd < 0)
		return FAKE_OUT_OF_MEMORY;
	if (ioctl(*fd, LAB_GPU_ALLOC, &request))
		goto err_close;
	*alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, (off_t)request.offset);
	if (*alias == MAP_FAILED)
		goto err_close;
	if (at_base && request.pages &&
	    mmap((void *)(uintptr_t)base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, *fd,
		 (off_t)request.offset) == MAP_FAILED)
		goto err_unmap;
	return FAKE_OK;

err_unmap:
	munmap(*alias, size);
err_close:
	close(*fd); /* frees the allocation, too */
	return FAKE_OUT_OF_MEMORY;
}

void fake_bar_unmap(uint64_t base, int fd)
{
	/* close() would not free the memory if a child process has the descriptor, too. */
	(void)ioctl(fd, LAB_GPU_FREE, &base);
}
