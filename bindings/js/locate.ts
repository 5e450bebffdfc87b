/** Where a runtime's binary is: a platform package that was installed beside this one. */

import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

/** The runtime's binary, by its name: the one that is given, the environment's, or that of the platform package. */
export function locate(path: string | undefined, name: string): string {
  if (path !== undefined) return path;
  const { ELIZA_INFERENCE_LIBRARY: file, ELIZA_INFERENCE_LIB_DIR: folder } = process.env;
  if (file) return file;
  if (folder && existsSync(join(folder, name))) return join(folder, name);
  return inPlatformPackage(name);
}

/** The packages that may hold binaries for a platform; on Linux npm installs the one that fits the C library. */
export function platformPackages(platform: string, arch: string): string[] {
  const names = platform === "linux" ? [`${platform}-${arch}-gnu`, `${platform}-${arch}-musl`] : [`${platform}-${arch}`];
  return names.map((name) => `eliza-inference-${name}`);
}

/** The file `name` of the platform package that is installed. Throws an error that names the missing package. */
function inPlatformPackage(name: string): string {
  const packages = platformPackages(process.platform, process.arch);
  const require = createRequire(import.meta.url);
  for (const candidate of packages) {
    let folder: string;
    try {
      folder = dirname(require.resolve(`${candidate}/package.json`));
    } catch {
      continue;
    }
    const file = join(folder, name);
    if (existsSync(file)) return file;
    throw new Error(`The package ${candidate} has no ${name}: install it again`);
  }
  throw new Error(
    `There is no ${name} for ${process.platform} ${process.arch}: install ${packages.join(" or ")}, ` +
      "or say where one is (option `library`, or ELIZA_INFERENCE_LIBRARY in the environment)",
  );
}
