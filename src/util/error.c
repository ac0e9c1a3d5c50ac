/* SPDX-License-Identifier: Apache-2.0 */
/* The public wh_error_text(), wh_status_name() and wh_version(). */
#include "util/error.h"

#include <errno.h>
#include <stddef.h>

#include <wherry/error.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *wh_error_text(void)
{
	return wh_fail_text();
}

const char *wh_version(void)
{
	return VERSION(WH_VERSION_MAJOR, WH_VERSION_MINOR, WH_VERSION_PATCH);
}

/* glibc has strerrorname_np() since 2.32 only. */
#define NAME(number) [number] = #number
static const char *const names[] = {
	NAME(EPERM),           NAME(ENOENT),          NAME(EINTR),        NAME(EIO),
	NAME(ENXIO),           NAME(E2BIG),           NAME(ENOEXEC),      NAME(EBADF),
	NAME(EAGAIN),          NAME(ENOMEM),          NAME(EACCES),       NAME(EFAULT),
	NAME(EBUSY),           NAME(EEXIST),          NAME(EXDEV),        NAME(ENODEV),
	NAME(ENOTDIR),         NAME(EISDIR),          NAME(EINVAL),       NAME(ENFILE),
	NAME(EMFILE),          NAME(ENOTTY),          NAME(EFBIG),        NAME(ENOSPC),
	NAME(ESPIPE),          NAME(EROFS),           NAME(EPIPE),        NAME(EDOM),
	NAME(ERANGE),          NAME(EDEADLK),         NAME(ENAMETOOLONG), NAME(ENOSYS),
	NAME(ENOTEMPTY),       NAME(ELOOP),           NAME(ENOMSG),       NAME(ENODATA),
	NAME(ETIME),           NAME(ENOLINK),         NAME(EPROTO),       NAME(EBADMSG),
	NAME(EOVERFLOW),       NAME(ENOTUNIQ),        NAME(EBADFD),       NAME(EREMCHG),
	NAME(ELIBACC),         NAME(ELIBBAD),         NAME(EUSERS),       NAME(ENOTSOCK),
	NAME(EDESTADDRREQ),    NAME(EMSGSIZE),        NAME(EPROTOTYPE),   NAME(ENOPROTOOPT),
	NAME(EPROTONOSUPPORT), NAME(EOPNOTSUPP),      NAME(EAFNOSUPPORT), NAME(EADDRINUSE),
	NAME(EADDRNOTAVAIL),   NAME(ENETDOWN),        NAME(ENETUNREACH),  NAME(ENETRESET),
	NAME(ECONNABORTED),    NAME(ECONNRESET),      NAME(ENOBUFS),      NAME(EISCONN),
	NAME(ENOTCONN),        NAME(ESHUTDOWN),       NAME(ETIMEDOUT),    NAME(ECONNREFUSED),
	NAME(EHOSTDOWN),       NAME(EHOSTUNREACH),    NAME(EALREADY),     NAME(EINPROGRESS),
	NAME(ESTALE),          NAME(EREMOTEIO),       NAME(EDQUOT),       NAME(ECANCELED),
	NAME(ENOKEY),          NAME(EKEYEXPIRED),     NAME(EKEYREVOKED),  NAME(EKEYREJECTED),
	NAME(EOWNERDEAD),      NAME(ENOTRECOVERABLE),
};

const char *wh_status_name(int status)
{
	size_t number = status < 0 ? -(size_t)status : (size_t)status;

	if (!status)
		return "OK";
	return status < 0 && number < sizeof(names) / sizeof(*names) && names[number] ?
		       names[number] :
		       "UNKNOWN";
}
