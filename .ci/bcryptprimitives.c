/* The function of bcryptprimitives.dll that Go needs to start on Windows. Wine
 * 8 does not have that library. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom of advapi32 */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T n) {
	return SystemFunction036(bytes, (ULONG)n);
}
