/** esbuild's text loader: a stylesheet is its source. */
declare module "*.css" {
  const source: string;
  export default source;
}
